"""The sprite sheet: drawn once from Noto Color Emoji by `python -m wq_cli.scenes.atlas FONT.ttf`, then only read."""

from __future__ import annotations

import argparse
import math
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from wq_cli.scenes import ASSETS
from wq_cli.scenes.things import EMOJI, SHAPES, SPRITES

CELL = 96
COLUMNS = 10
ATLAS = ASSETS / "atlas.png"


@cache
def load() -> NDArray[np.float32]:
    """Sprites [len(SPRITES), 4, CELL, CELL], RGBA in [0, 1]; colour is premultiplied by alpha."""
    sheet = np.asarray(Image.open(ATLAS).convert("RGBA")).astype(np.float32) / np.float32(255)
    rows = sheet.shape[0] // CELL
    cells = sheet.reshape(rows, CELL, COLUMNS, CELL, 4).transpose(0, 2, 4, 1, 3).reshape(-1, 4, CELL, CELL)
    sprites: NDArray[np.float32] = np.array(cells[: len(SPRITES)], np.float32)
    sprites[:, :3] *= sprites[:, 3:]
    return sprites


def build(font_path: Path, path: Path = ATLAS) -> None:
    """Draws every sprite into one PNG."""
    font = ImageFont.truetype(str(font_path), 109)  # the only size of the font's bitmaps
    rows = math.ceil(len(SPRITES) / COLUMNS)
    sheet = Image.new("RGBA", (COLUMNS * CELL, rows * CELL))
    for index, name in enumerate(SPRITES):
        sprite = _shape(name) if name in SHAPES else _emoji(EMOJI[name], font)
        row, column = divmod(index, COLUMNS)
        corner = (column * CELL + (CELL - sprite.width) // 2, row * CELL + (CELL - sprite.height) // 2)
        sheet.paste(sprite, corner)
    sheet.save(path, optimize=True)


def _emoji(character: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    tile = Image.new("RGBA", (160, 160))
    ImageDraw.Draw(tile).text((0, 0), character, font=font, embedded_color=True)
    return _fit(tile.crop(tile.getbbox()))


def _shape(name: str) -> Image.Image:
    size = 8 * CELL
    tile = Image.new("RGBA", (size, size))
    draw = ImageDraw.Draw(tile)
    if name == "circle":
        draw.ellipse((0, 0, size - 1, size - 1), fill="white")
    elif name == "square":
        draw.rounded_rectangle((0, 0, size - 1, size - 1), size // 16, fill="white")
    else:
        draw.polygon([(x * size, y * size) for x, y in _outline(name)], fill="white")
    return _fit(tile.crop(tile.getbbox()))


def _outline(name: str) -> list[tuple[float, float]]:
    if name == "triangle":
        return [(0.5, 0.02), (0.98, 0.92), (0.02, 0.92)]
    if name == "diamond":
        return [(0.5, 0.0), (0.86, 0.5), (0.5, 1.0), (0.14, 0.5)]
    if name == "star":
        radii = [(0.5 if i % 2 == 0 else 0.2, math.pi * i / 5) for i in range(10)]
        return [(0.5 + r * math.sin(a), 0.52 - r * math.cos(a)) for r, a in radii]
    angles = [2 * math.pi * i / 200 for i in range(200)]
    return [
        (
            0.5 + math.sin(a) ** 3 / 2.1,
            0.44 - (13 * math.cos(a) - 5 * math.cos(2 * a) - 2 * math.cos(3 * a) - math.cos(4 * a)) / 34,
        )
        for a in angles
    ]


def _fit(tile: Image.Image) -> Image.Image:
    scale = (CELL - 4) / max(tile.size)
    return tile.resize((round(tile.width * scale), round(tile.height * scale)), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("font", type=Path)
    build(parser.parse_args().font)
