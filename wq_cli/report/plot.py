"""The figures of `wq bench` as a picture: fidelity against effective bits, KV memory, time per token."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw

from wq_cli.report import canvas, format
from wq_cli.report.canvas import GREY, INK, PALE, PAPER, Colour, font
from wq_cli.results import BenchResult, BenchRow

WIDTH, _MARGIN, _BAR, _PLOT = 1200, 50, 34, 420
_TITLE, _LABEL, _SMALL = 24, 18, 15
_NAME_ROOM, _VALUE_ROOM = 170, 130
# Okabe and Ito's colours, in an order in which neighbours differ in lightness too.
_COLOURS: tuple[Colour, ...] = (
    (0, 0, 0),
    (213, 94, 0),
    (0, 114, 178),
    (86, 180, 233),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
)


def draw_plot(result: BenchResult) -> bytes:
    """Draw the figures; the scatter is left out where fidelity was not measured.

    Returns:
        The bytes of a PNG, `WIDTH` pixels wide.
    """
    rows = result.rows
    colours = {row.policy: _COLOURS[index % len(_COLOURS)] for index, row in enumerate(rows)}
    measured = [row for row in rows if row.kl_to_full is not None and row.kl_to_full > 0]
    bars = 90 + len(rows) * _BAR
    height = 2 * _MARGIN + 50 + (_PLOT + 110 if measured else 0) + 2 * bars
    image = Image.new("RGB", (WIDTH, height), PAPER)
    draw = ImageDraw.Draw(image)
    title = (
        f"{result.model.name} on {result.model.device}: {result.visual_tokens:,} visual tokens, batch {result.batch}, "
        f"{result.model.dtype}"
    )
    draw.text((_MARGIN, _MARGIN), canvas.fitted(draw, title, WIDTH - 2 * _MARGIN, _TITLE), INK, font(_TITLE))
    y = _MARGIN + 50
    if measured:
        _scatter(draw, measured, colours, y)
        y += _PLOT + 110
    _bars(draw, rows, colours, y, "KV cache", lambda row: row.kv_bytes, lambda row: format.size(row.kv_bytes))
    _bars(
        draw,
        rows,
        colours,
        y + bars,
        "time per token",
        lambda row: row.decode_ms_per_token,
        lambda row: format.milliseconds(row.decode_ms_per_token),
    )
    return canvas.png(image)


def _scatter(draw: ImageDraw.ImageDraw, rows: Sequence[BenchRow], colours: dict[str, Colour], top: int) -> None:
    """KL on a logarithmic axis against effective bits; lower and further left is better."""
    left, right, bottom = _MARGIN + 80, WIDTH - _MARGIN - 20, top + 40 + _PLOT
    draw.text((_MARGIN, top), "KL to full precision (nats), lower is better", INK, font(_LABEL))
    values = [row.kl_to_full or 1.0 for row in rows]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    high = max(high, low + 1)
    most_bits = math.ceil(max(row.effective_bits for row in rows) + 0.5)

    def place(row: BenchRow) -> tuple[float, float]:
        share = (math.log10(row.kl_to_full or 1.0) - low) / (high - low)
        return left + (right - left) * row.effective_bits / most_bits, bottom - (bottom - top - 40) * share

    for power in range(low, high + 1):
        y = bottom - (bottom - top - 40) * (power - low) / (high - low)
        draw.line([(left, y), (right, y)], PALE)
        draw.text((left - 12, y), f"{10.0**power:g}", GREY, font(_SMALL), anchor="rm")
    for bits in range(0, most_bits + 1, max(1, most_bits // 8)):
        x = left + (right - left) * bits / most_bits
        draw.line([(x, bottom), (x, bottom + 6)], GREY)
        draw.text((x, bottom + 10), str(bits), GREY, font(_SMALL), anchor="ma")
    draw.text((right, bottom + 32), "effective bits per visual element", GREY, font(_SMALL), anchor="ra")
    draw.line([(left, bottom), (right, bottom)], GREY)
    taken: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda row: place(row)[1]):
        x, y = place(row)
        draw.ellipse((x - 7, y - 7, x + 7, y + 7), colours[row.policy])
        length = draw.textlength(row.policy, font(_SMALL))
        label_x = x + 14 if x + 14 + length < right else x - 14 - length
        label_y = y - 9
        while any(abs(label_x - other_x) < 130 and abs(label_y - other_y) < 20 for other_x, other_y in taken):
            label_y += 4
        taken.append((label_x, label_y))
        draw.text((label_x, label_y), row.policy, INK, font(_SMALL))


def _bars(
    draw: ImageDraw.ImageDraw,
    rows: Sequence[BenchRow],
    colours: dict[str, Colour],
    top: int,
    heading: str,
    value: Callable[[BenchRow], float],
    text: Callable[[BenchRow], str],
) -> None:
    """One horizontal bar a policy, all from zero."""
    left, right = _MARGIN + _NAME_ROOM, WIDTH - _MARGIN - _VALUE_ROOM
    most = max(value(row) for row in rows) or 1.0
    draw.text((_MARGIN, top), heading, INK, font(_LABEL))
    for index, row in enumerate(rows):
        y = top + 36 + index * _BAR
        end = left + max(2, round((right - left) * value(row) / most))
        name = canvas.fitted(draw, row.policy, _NAME_ROOM - 20, _SMALL)
        draw.text((left - 14, y + _BAR // 2 - 4), name, INK, font(_SMALL), anchor="rm")
        draw.rectangle((left, y, end, y + _BAR - 10), colours[row.policy])
        draw.text((end + 12, y + _BAR // 2 - 4), text(row), GREY, font(_SMALL), anchor="lm")
