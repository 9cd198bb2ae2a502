"""What the PNG drawings share: colours, the built-in font, text that fits."""

from __future__ import annotations

import io
from functools import cache

from PIL import Image, ImageDraw, ImageFont

from wq_cli.console import printable
from wq_cli.report.format import nearest_below

Colour = tuple[int, int, int]

PAPER: Colour = (255, 255, 255)
INK: Colour = (34, 34, 34)
GREY: Colour = (118, 118, 118)
PALE: Colour = (228, 228, 228)
# Okabe and Ito's colours for colour-blind readers.
WIDTHS: dict[int, Colour] = {16: (213, 94, 0), 8: (230, 159, 0), 4: (86, 180, 233), 2: (214, 222, 232)}
# Ten samples of cividis (Nunez, Anderton and Renslow 2018), which reads the same with any colour vision.
_CIVIDIS: tuple[Colour, ...] = (
    (0, 34, 78),
    (18, 53, 112),
    (59, 73, 108),
    (87, 93, 109),
    (112, 113, 115),
    (138, 134, 120),
    (165, 156, 116),
    (195, 179, 105),
    (225, 204, 85),
    (254, 232, 56),
)

# Pillow's font stops after Latin; these hold more, and Pillow finds them by name on the usual systems.
_BUILT_IN_END = 0x250
_WIDE_FONTS = ("NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "msyh.ttc", "DejaVuSans.ttf")


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Pillow's own font, so that a drawing looks the same everywhere."""
    return ImageFont.load_default(size)


def font_for(text: str, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The built-in font, or one of the system's where `text` has letters that it lacks."""
    if all(ord(letter) < _BUILT_IN_END for letter in text):
        return font(size)
    for name in _WIDE_FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return font(size)


def ramp(share: float) -> Colour:
    """Colour of 0 (dark blue) to 1 (yellow)."""
    place = min(max(share, 0.0), 1.0) * (len(_CIVIDIS) - 1)
    low = min(int(place), len(_CIVIDIS) - 2)
    red, green, blue = (
        round(start + (place - low) * (end - start))
        for start, end in zip(_CIVIDIS[low], _CIVIDIS[low + 1], strict=True)
    )
    return red, green, blue


def width_colour(bits: int) -> Colour:
    """Colour of a width in bits."""
    return WIDTHS[nearest_below(bits, WIDTHS)]


def fitted(draw: ImageDraw.ImageDraw, text: str, room: float, size: int) -> str:
    """`text` on one line, shortened so that it takes at most `room` pixels."""
    text = " ".join(printable(text).split())
    chosen = font_for(text, size)
    if draw.textlength(text, chosen) <= room:
        return text
    while text and draw.textlength(text + "...", chosen) > room:
        text = text[:-1]
    return text.rstrip() + "..."


def png(image: Image.Image) -> bytes:
    """The file's bytes."""
    data = io.BytesIO()
    image.save(data, "PNG", optimize=True)
    return data.getvalue()
