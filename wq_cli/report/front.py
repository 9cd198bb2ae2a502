"""Rows of an evaluation as a picture: KL and accuracy against effective bits, the budgets of one policy joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw

from wq_cli.report import canvas
from wq_cli.report.axes import LEGEND_WIDTH, Axes, colour_of, decades
from wq_cli.report.canvas import GREY, INK, PALE, PAPER, font
from wq_cli.results import EvalResult, EvalRow

WIDTH, _MARGIN, _PLOT, _BELOW = 1200, 50, 460, 110
_TITLE, _SMALL = 24, 15
# A few wider rows would take the room of those that are compared: where this share is within, the rest is named only.
MOST_BITS, FEWEST = 7.0, 0.75
# Policy whose marks are larger and on top of the others.
OURS = "focus"


def draw_front(result: EvalResult) -> bytes:
    """Draw the rows that are narrower than full precision.

    Returns:
        The bytes of a PNG, `WIDTH` pixels wide.
    """
    every = result.rows[1:] or result.rows
    rows = [row for row in every if row.effective_bits <= MOST_BITS]
    rows = rows if len(rows) >= FEWEST * len(every) else list(every)
    top = _MARGIN + 100
    image = Image.new("RGB", (WIDTH, top + 2 * (_PLOT + _BELOW)), PAPER)
    draw = ImageDraw.Draw(image)
    title = f"{result.model.name}: {result.questions} questions of {result.suite}, {result.frames} frames"
    draw.text((_MARGIN, _MARGIN), canvas.fitted(draw, title, WIDTH - 2 * _MARGIN, _TITLE), INK, font(_TITLE))
    said = ["broad line: the rows whose KL no other row beats at as many bits or fewer"] if len(front(rows)) > 1 else []
    beyond = ", ".join(f"{row.label} ({row.effective_bits:.1f} bits)" for row in every if row not in rows)
    said += [f"further right: {beyond}"] if beyond else []
    for line, text in enumerate(said):
        shown = canvas.fitted(draw, text, WIDTH - 2 * _MARGIN, _SMALL)
        draw.text((_MARGIN, _MARGIN + 34 + 20 * line), shown, GREY, font(_SMALL))
    _draw_kl(draw, rows, top)
    _draw_accuracy(draw, rows, result.rows[0], top + _PLOT + _BELOW)
    return canvas.png(image)


def _draw_kl(draw: ImageDraw.ImageDraw, rows: Sequence[EvalRow], top: int) -> None:
    # A KL of zero has no logarithm: the axes put it at the lower end, as they do with errors that reach so far.
    above_zero = [row for row in rows if row.kl_to_full > 0]
    ends = [row.kl_to_full + (row.kl_standard_error or 0.0) for row in above_zero]
    y_range = decades([*(row.kl_to_full for row in above_zero), *ends] or [1.0])
    axes = _axes(draw, rows, top, y_range, "KL to full precision (nats), with its standard error", log_y=True)
    axes.line([(row.effective_bits, row.kl_to_full) for row in front(rows)], PALE, width=12)
    for row in rows:
        error = row.kl_standard_error or 0.0
        axes.line([(row.effective_bits, row.kl_to_full + sign * error) for sign in (-1, 1)], GREY, width=1)
    _draw_rows(axes, rows, lambda row: row.kl_to_full)
    names = list(dict.fromkeys(map(_series, rows)))
    axes.legend([f"{name} (ours)" if name == OURS else name for name in names])


def _draw_accuracy(draw: ImageDraw.ImageDraw, rows: Sequence[EvalRow], full: EvalRow, top: int) -> None:
    """All rows answer the same questions, so that one standard error, that of full precision, stands for theirs."""
    error = full.standard_error or 0.0
    ends = [full.accuracy - error, full.accuracy + error, *(row.accuracy for row in rows)]
    y_range = (max(0.0, min(ends) - 0.01), min(1.0, max(ends) + 0.01))
    heading = "accuracy; grey lines: full precision and its standard error"
    axes = _axes(draw, rows, top, y_range, heading, percent=True)
    for sign, width in ((-1, 1), (0, 3), (1, 1)):
        axes.line([(bits, full.accuracy + sign * error) for bits in _x_range(rows)], GREY, width)
    _draw_rows(axes, rows, lambda row: row.accuracy)


def _x_range(rows: Sequence[EvalRow]) -> tuple[int, int]:
    bits = [row.effective_bits for row in rows]
    return int(min(bits)), int(max(bits)) + 1


def _axes(
    draw: ImageDraw.ImageDraw,
    rows: Sequence[EvalRow],
    top: int,
    y_range: tuple[float, float],
    heading: str,
    *,
    log_y: bool = False,
    percent: bool = False,
) -> Axes:
    low, high = _x_range(rows)
    axes = Axes(draw, (_MARGIN + 80, top, WIDTH - LEGEND_WIDTH, top + _PLOT), (low, high), y_range, log_y)
    ticks = range(low, high + 1, max(1, (high - low) // 8))
    axes.frame(heading, "effective bits per visual element", ticks, percent)
    return axes


def front(rows: Sequence[EvalRow]) -> list[EvalRow]:
    """The rows whose KL no other row beats at as many bits or fewer, by bits."""
    kept: list[EvalRow] = []
    for row in sorted(rows, key=lambda row: (row.effective_bits, row.kl_to_full)):
        if not kept or row.kl_to_full < kept[-1].kl_to_full:
            kept.append(row)
    return kept


def _series(row: EvalRow) -> str:
    """What is joined: one policy at several budgets."""
    return row.label if row.bits_asked is None else row.policy


def _draw_rows(axes: Axes, rows: Sequence[EvalRow], value: Callable[[EvalRow], float]) -> None:
    """Every series with its marks."""
    names = list(dict.fromkeys(map(_series, rows)))
    for name in sorted(names, key=lambda name: name == OURS):
        index, large = names.index(name), name == OURS
        mine = sorted((row for row in rows if _series(row) == name), key=lambda row: row.effective_bits)
        axes.line([(row.effective_bits, value(row)) for row in mine], colour_of(index), width=5 if large else 2)
        for row in mine:
            axes.mark(row.effective_bits, value(row), index, large)
