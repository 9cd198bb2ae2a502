"""The map of `wq inspect` as a picture: prompts over time, the frames under the time axis, the widths in each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from wq_cli.report import canvas, format
from wq_cli.report.canvas import GREY, INK, PALE, PAPER, fitted, font, font_for
from wq_cli.report.tables import most_relevant, shares
from wq_cli.results import InspectResult, LayerResult, WindowResult

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WIDTH = 1600
_MARGIN, _LEFT, _RIGHT = 40, 70, 190
_TITLE, _LABEL, _SMALL, _TINY = 28, 20, 16, 14
_STRIP, _GAP, _AXIS, _THUMB, _LAYER = 56, 20, 46, 110, 14


@dataclass
class _Sheet:
    """A drawing that is filled from top to bottom; `y` is where the next part begins."""

    draw: ImageDraw.ImageDraw
    image: Image.Image
    result: InspectResult
    y: int = _MARGIN

    left: int = _MARGIN + _LEFT
    right: int = WIDTH - _MARGIN - _RIGHT

    def x(self, index: float, count: int) -> int:
        """Horizontal place of the boundary before window (or frame) `index` of `count`."""
        return self.left + round(index * (self.right - self.left) / count)


def draw_map(result: InspectResult, frames: NDArray[np.uint8]) -> bytes:
    """Draw the map.

    Args:
        result: Scores and widths.
        frames: The sampled frames, RGB, [F, H, W, 3].

    Returns:
        The bytes of a PNG, `WIDTH` pixels wide.
    """
    prompts, layers = len(result.prompts), len(result.layers)
    thumb_height = min(_THUMB * 2, max(40, round(_THUMB * 1.3 * frames.shape[1] / frames.shape[2])))
    height = 2 * _MARGIN + 60 + prompts * (30 + _STRIP + _GAP) + _AXIS + thumb_height + 60 + layers * _LAYER + _AXIS
    image = Image.new("RGB", (WIDTH, height), PAPER)
    sheet = _Sheet(ImageDraw.Draw(image), image, result)
    _title(sheet)
    for prompt, windows in zip(result.prompts, result.windows, strict=True):
        _strip(sheet, prompt, windows)
    _axis(sheet)
    _thumbnails(sheet, frames, thumb_height)
    _layers(sheet, result.windows[0], result.layers)
    _axis(sheet)
    return canvas.png(image)


def _title(sheet: _Sheet) -> None:
    """Name of the file, what was read, and the scale of the relevance."""
    result, draw = sheet.result, sheet.draw
    video = result.video
    facts = (
        f"{video.frames} frames, {result.visual_tokens:,} visual tokens, windows of {result.window_size}, "
        f"policy {result.policy.name}"
    )
    room = sheet.right - sheet.left - draw.textlength(facts, font(_SMALL)) - 30
    name = fitted(draw, video.path.replace("\\", "/").rsplit("/", 1)[-1], room, _TITLE)
    draw.text((sheet.left, sheet.y), name, INK, font_for(name, _TITLE))
    draw.text((sheet.right, sheet.y + 11), facts, GREY, font(_SMALL), anchor="ra")
    x, length = sheet.right + 20, WIDTH - _MARGIN - sheet.right - 20
    for pixel in range(length):
        draw.line([(x + pixel, sheet.y), (x + pixel, sheet.y + 14)], canvas.ramp(pixel / (length - 1)))
    draw.text((x, sheet.y + 18), "less", GREY, font(_TINY))
    draw.text((x + length, sheet.y + 18), "more relevant", GREY, font(_TINY), anchor="ra")
    draw.text((x, sheet.y + 36), "grey: not scored", GREY, font(_TINY))
    sheet.y += 60


def _strip(sheet: _Sheet, prompt: str, windows: Sequence[WindowResult]) -> None:
    """One prompt: its text, where it is strongest, a coloured cell per window."""
    draw, count, drawn = sheet.draw, len(windows), shares(windows)
    top = most_relevant(windows)
    label = fitted(draw, prompt, sheet.right - sheet.left, _LABEL)
    draw.text((sheet.left, sheet.y), label, INK, font_for(label, _LABEL))
    sheet.y += 30
    bottom = sheet.y + _STRIP
    for place, window in enumerate(windows):
        box = (sheet.x(place, count), sheet.y, max(sheet.x(place, count), sheet.x(place + 1, count) - 1), bottom)
        draw.rectangle(box, canvas.ramp(drawn[window.index]) if window.index in drawn else PALE)
    if top:
        where = format.span(top[0].start_seconds, top[0].end_seconds, sheet.result.video.duration_seconds, format.ASCII)
        x = sheet.x(windows.index(top[0]) + 0.5, count)
        draw.polygon([(x - 7, sheet.y - 10), (x + 7, sheet.y - 10), (x, sheet.y - 1)], INK)
        draw.text((sheet.right + 20, sheet.y + 4), "strongest at", GREY, font(_SMALL))
        draw.text((sheet.right + 20, sheet.y + 26), where, INK, font(_SMALL))
    elif not drawn:
        draw.text((sheet.right + 20, sheet.y + 16), "not scored", GREY, font(_SMALL))
    sheet.y = bottom + _GAP


def _axis(sheet: _Sheet) -> None:
    """Times at which windows begin, as many as fit without touching."""
    draw, windows = sheet.draw, sheet.result.windows[0]
    longest = sheet.result.video.duration_seconds
    labels = [format.clock(window.start_seconds, longest) for window in windows]
    room = max(draw.textlength(label, font(_SMALL)) for label in labels) + 24
    y = sheet.y - _GAP + 6
    draw.line([(sheet.left, y), (sheet.right, y)], GREY)
    free, shown = sheet.left - 1, ""
    for place, label in enumerate(labels):
        x = sheet.x(place, len(windows))
        if x >= free and label != shown and x + room / 2 <= sheet.right + 20:
            draw.line([(x, y), (x, y + 6)], GREY)
            draw.text((x, y + 9), label, GREY, font(_SMALL), anchor="ma")
            free, shown = x + round(max(room, 110)), label
    if longest < 60:
        draw.text((sheet.right + 20, y + 9), "seconds", GREY, font(_SMALL))
    sheet.y += _AXIS - _GAP


def _thumbnails(sheet: _Sheet, frames: NDArray[np.uint8], height: int) -> None:
    """Frames at their places in time, as many as fit side by side."""
    count, rows, columns = frames.shape[:3]
    slot_width = (sheet.right - sheet.left) / min(count, max(1, (sheet.right - sheet.left) // _THUMB))
    slots = round((sheet.right - sheet.left) / slot_width)
    scale = min((slot_width - 6) / columns, height / rows)
    size = (max(1, round(columns * scale)), max(1, round(rows * scale)))
    for slot in range(slots):
        frame = min(count - 1, int((slot + 0.5) * count / slots))
        picture = Image.fromarray(frames[frame]).resize(size, Image.Resampling.LANCZOS)
        x = sheet.x(frame + 0.5, count) - size[0] // 2 if slots == count else sheet.x(slot + 0.5, slots) - size[0] // 2
        sheet.image.paste(picture, (x, sheet.y))
    sheet.y += height + 24


def _layers(sheet: _Sheet, windows: Sequence[WindowResult], layers: Sequence[LayerResult]) -> None:
    """Bits of each window in each layer, for the first prompt, and the sensitivity of the layers beside them."""
    draw, count = sheet.draw, len(windows)
    several = len(sheet.result.prompts) > 1
    _legend(sheet, windows, f"bits in each layer{' for the first prompt' if several else ''}")
    known = [layer.sensitivity for layer in layers if layer.sensitivity is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if known:
        draw.text((sheet.right + 20, sheet.y - 24), "layer sensitivity", GREY, font(_SMALL))
    step = max(1, -(-len(layers) // 14))
    for layer in layers:
        bottom = sheet.y + _LAYER - 2
        for place, window in enumerate(windows):
            box = (sheet.x(place, count), sheet.y, max(sheet.x(place, count), sheet.x(place + 1, count) - 1), bottom)
            draw.rectangle(box, canvas.width_colour(window.key_bits[layer.index]))
        middle = sheet.y + _LAYER // 2 - 1
        if layer.index % step == 0:
            draw.text((sheet.left - 12, middle), str(layer.index), GREY, font(_TINY), anchor="rm")
        if layer.sensitivity is not None:
            share = (layer.sensitivity - low) / (high - low) if high > low else 1.0
            draw.rectangle((sheet.right + 20, sheet.y, sheet.right + 24 + round(90 * share), bottom), GREY)
            if layer.index % step == 0:
                text = f"{layer.sensitivity:.3f}"
                draw.text((WIDTH - _MARGIN, middle), text, GREY, font(_TINY), anchor="rm")
        sheet.y += _LAYER
    sheet.y += _GAP


def _legend(sheet: _Sheet, windows: Sequence[WindowResult], heading: str) -> None:
    draw = sheet.draw
    split = any(window.key_bits != window.value_bits for window in windows)
    heading = heading.replace("bits", "bits of the keys") if split else heading
    draw.text((sheet.left, sheet.y), heading, INK, font(_LABEL))
    x = sheet.left + draw.textlength(heading, font(_LABEL)) + 30
    for bits in sorted({bits for window in windows for bits in window.key_bits}, reverse=True):
        draw.rectangle((x, sheet.y + 4, x + 18, sheet.y + 20), canvas.width_colour(bits))
        draw.text((x + 26, sheet.y + 3), f"{bits}", GREY, font(_SMALL))
        x += 70
    sheet.y += 34
