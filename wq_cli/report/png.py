"""The map of `wq inspect` as a picture: prompts over time, the frames under the time axis, the widths in each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
# From the top of a prompt to its strip: the text, then the marker.
_PROMPT = 40


@dataclass
class _Sheet:
    """A drawing that is filled from top to bottom; `y` is where the next part begins."""

    draw: ImageDraw.ImageDraw
    image: Image.Image
    result: InspectResult
    y: int = _MARGIN

    left: int = _MARGIN + _LEFT
    right: int = WIDTH - _MARGIN - _RIGHT

    def x(self, share: float) -> int:
        """Horizontal place of a share of the clip."""
        return self.left + round(share * (self.right - self.left))

    def windows(self) -> Iterator[tuple[WindowResult, int, int]]:
        """The windows of the first prompt with the first and last column of each, in proportion to their tokens."""
        windows = self.result.windows[0]
        total = sum(window.tokens for window in windows)
        done = 0
        for window in windows:
            first = self.x(done / total)
            done += window.tokens
            yield window, first, max(first, self.x(done / total) - 1)


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
    height = (
        2 * _MARGIN + 60 + prompts * (_PROMPT + _STRIP + _GAP) + _AXIS + thumb_height + 60 + layers * _LAYER + _AXIS
    )
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
    draw.rectangle((x, sheet.y + 39, x + 14, sheet.y + 50), PALE)
    draw.text((x + 22, sheet.y + 36), "not scored", GREY, font(_TINY))
    sheet.y += 60


def _strip(sheet: _Sheet, prompt: str, windows: Sequence[WindowResult]) -> None:
    """One prompt: its text, where it is strongest, a coloured cell per window."""
    draw, drawn = sheet.draw, shares(windows)
    top = most_relevant(windows)
    label = fitted(draw, prompt, sheet.right - sheet.left, _LABEL)
    draw.text((sheet.left, sheet.y), label, INK, font_for(label, _LABEL))
    sheet.y += _PROMPT
    bottom = sheet.y + _STRIP
    for window, first, last in sheet.windows():
        colour = canvas.ramp(drawn[window.index]) if window.index in drawn else PALE
        draw.rectangle((first, sheet.y, last, bottom), colour)
        if top and window.index == top[0].index:
            x = (first + last) // 2
            draw.polygon([(x - 7, sheet.y - 11), (x + 7, sheet.y - 11), (x, sheet.y - 2)], INK)
    if top:
        where = format.span(top[0].start_seconds, top[0].end_seconds, sheet.result.video.duration_seconds, format.ASCII)
        draw.text((sheet.right + 20, sheet.y + 4), "strongest at", GREY, font(_SMALL))
        draw.text((sheet.right + 20, sheet.y + 26), where, INK, font(_SMALL))
    elif not drawn:
        draw.text((sheet.right + 20, sheet.y + 16), "not scored", GREY, font(_SMALL))
    sheet.y = bottom + _GAP


def _axis(sheet: _Sheet) -> None:
    """Times at which windows begin, as many as fit without touching."""
    draw = sheet.draw
    longest = sheet.result.video.duration_seconds
    labels = [(format.clock(window.start_seconds, longest), first) for window, first, _ in sheet.windows()]
    room = max(draw.textlength(label, font(_SMALL)) for label, _ in labels) + 24
    y = sheet.y - _GAP + 6
    draw.line([(sheet.left, y), (sheet.right, y)], GREY)
    free, shown = sheet.left - 1, ""
    for label, x in labels:
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
        sheet.image.paste(picture, (sheet.x((slot + 0.5) / slots) - size[0] // 2, sheet.y))
    sheet.y += height + 24


def _layers(sheet: _Sheet, windows: Sequence[WindowResult], layers: Sequence[LayerResult]) -> None:
    """Bits of each window in each layer, for the first prompt, and the sensitivity of the layers beside them."""
    draw = sheet.draw
    several = len(sheet.result.prompts) > 1
    _legend(sheet, windows, f"bits in each layer{' for the first prompt' if several else ''}")
    known = [layer.sensitivity for layer in layers if layer.sensitivity is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    if known:
        draw.text((sheet.right + 20, sheet.y - 24), "layer sensitivity", GREY, font(_SMALL))
    step = max(1, -(-len(layers) // 14))
    for layer in layers:
        bottom = sheet.y + _LAYER - 2
        for window, first, last in sheet.windows():
            draw.rectangle((first, sheet.y, last, bottom), canvas.width_colour(window.key_bits[layer.index]))
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
