"""The figures of `wq bench` and `wq bench scaling` as pictures.

The first: fidelity against effective bits, KV memory, time per token. The second: what grows with the video.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from wq_cli.report import canvas, format
from wq_cli.report.axes import Axes, colour_of, decades, round_values
from wq_cli.report.canvas import GREY, INK, PAPER, Colour, font
from wq_cli.results import BenchResult, BenchRow

if TYPE_CHECKING:
    from wq_cli.bench_results import ScalingResult

WIDTH, _MARGIN, _BAR, _PLOT = 1200, 50, 34, 420
_TITLE, _LABEL, _SMALL = 24, 18, 15
_NAME_ROOM, _VALUE_ROOM = 170, 130


def draw_plot(result: BenchResult) -> bytes:
    """Draw the figures; the scatter is left out where fidelity was not measured.

    Returns:
        The bytes of a PNG, `WIDTH` pixels wide.
    """
    rows = result.rows
    colours = {row.policy: colour_of(index) for index, row in enumerate(rows)}
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
    most_bits = math.ceil(max(row.effective_bits for row in rows) + 0.5)
    y_range = decades([row.kl_to_full or 1.0 for row in rows])
    box = (_MARGIN + 80, top, WIDTH - _MARGIN - 20, top + 40 + _PLOT)
    axes = Axes(draw, box, (0, most_bits), y_range, log_y=True)
    ticks = range(0, most_bits + 1, max(1, most_bits // 8))
    axes.frame("KL to full precision (nats), lower is better", "effective bits per visual element", ticks)
    for row in sorted(rows, key=lambda row: -(row.kl_to_full or 1.0)):
        axes.point(row.effective_bits, row.kl_to_full or 1.0, colours[row.policy], row.policy)


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


def draw_scaling(result: ScalingResult) -> bytes:
    """Draw time per token against the size of the KV cache at full precision, and memory against frames.

    Where the device counts its peak, that is drawn too.

    Returns:
        The bytes of a PNG, `WIDTH` pixels wide.
    """
    full = [step.policies[0].kv_bytes_full / 2**20 for step in result.rows]
    frames = [float(step.frames) for step in result.rows]
    panels: list[tuple[str, str, list[float], Callable[[BenchRow], float]]] = [
        ("time per token, ms", "KV cache at full precision, MiB", full, lambda row: row.decode_ms_per_token),
        ("KV cache, MiB", "frames", frames, lambda row: row.kv_bytes / 2**20),
    ]
    if result.model.device.startswith("cuda"):
        panels.append(("peak memory, MiB", "frames", frames, lambda row: (row.peak_bytes or 0) / 2**20))
    image = Image.new("RGB", (WIDTH, 2 * _MARGIN + 50 + len(panels) * (_PLOT + 110)), PAPER)
    draw = ImageDraw.Draw(image)
    title = f"{result.model.name} on {result.model.device}: batch {result.batch}, {result.model.dtype}"
    draw.text((_MARGIN, _MARGIN), canvas.fitted(draw, title, WIDTH - 2 * _MARGIN, _TITLE), INK, font(_TITLE))
    for index, (heading, x_label, places, value) in enumerate(panels):
        top = _MARGIN + 50 + index * (_PLOT + 110)
        lines = {
            row.policy: [value(step.policies[line]) for step in result.rows]
            for line, row in enumerate(result.rows[0].policies)
        }
        most = max(max(values) for values in lines.values())
        box = (_MARGIN + 80, top, WIDTH - _MARGIN - 20, top + 40 + _PLOT)
        axes = Axes(draw, box, (0, 1.05 * max(places)), (0, 1.1 * most))
        axes.frame(heading, x_label, places if places is frames else round_values(0, max(places)))
        for line, (name, values) in enumerate(lines.items()):
            points = list(zip(places, values, strict=True))
            axes.line(points, colour_of(line))
            for point in points:
                axes.point(*point, colour_of(line), name if point is points[-1] else "")
    return canvas.png(image)
