"""Rows of an evaluation as a picture: KL and accuracy against effective bits, the budgets of one policy joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PIL import Image, ImageDraw

from wq_cli.report import canvas
from wq_cli.report.axes import LEGEND_WIDTH, Axes, colour_of, decades
from wq_cli.report.canvas import GREY, INK, PALE, PAPER, font
from wq_cli.results import EvalResult, EvalRow

WIDTH, _MARGIN, _PLOT = 1200, 50, 460
_TITLE, _SMALL = 24, 15


def draw_front(result: EvalResult) -> bytes:
    """Draw the rows that are narrower than full precision.

    Returns:
        The bytes of a PNG, `WIDTH` pixels wide.
    """
    rows = result.rows[1:] or result.rows
    image = Image.new("RGB", (WIDTH, 2 * _MARGIN + 80 + 2 * (_PLOT + 110)), PAPER)
    draw = ImageDraw.Draw(image)
    title = f"{result.model.name}: {result.questions} questions of {result.suite}, {result.frames} frames"
    draw.text((_MARGIN, _MARGIN), canvas.fitted(draw, title, WIDTH - 2 * _MARGIN, _TITLE), INK, font(_TITLE))
    said = "broad line: the rows that no other row beats at as many bits or fewer"
    draw.text((_MARGIN, _MARGIN + 34), said, GREY, font(_SMALL))
    top, bottom = _MARGIN + 80, _MARGIN + 80 + _PLOT
    low, high = min(row.effective_bits for row in rows), max(row.effective_bits for row in rows)
    x_range = (int(low), int(high) + 1)
    ticks = list(range(x_range[0], x_range[1] + 1))
    # A KL of zero has no logarithm: it stands at the lower end.
    y_range = decades([row.kl_to_full for row in rows if row.kl_to_full > 0] or [1.0])
    axes = Axes(draw, (_MARGIN + 80, top, WIDTH - LEGEND_WIDTH, bottom), x_range, y_range, log_y=True)
    axes.frame("KL to full precision (nats), with its standard error", "effective bits per visual element", ticks)
    _draw_rows(
        axes, rows, lambda row: max(row.kl_to_full, y_range[0]), lambda row: row.kl_standard_error or 0.0, best=min
    )

    errors = [row.accuracy - (row.standard_error or 0.0) for row in rows]
    y_range = (
        max(0.0, min(errors) - 0.01),
        min(1.0, max(row.accuracy + (row.standard_error or 0.0) for row in rows) + 0.01),
    )
    shift = _PLOT + 110
    box = (_MARGIN + 80, top + shift, WIDTH - LEGEND_WIDTH, bottom + shift)
    axes = Axes(draw, box, x_range, y_range)
    axes.frame("accuracy, with its standard error", "effective bits per visual element", ticks, percent=True)
    _draw_rows(axes, rows, lambda row: row.accuracy, lambda row: row.standard_error or 0.0, best=max)
    return canvas.png(image)


def front(
    rows: Sequence[EvalRow], value: Callable[[EvalRow], float], best: Callable[[float, float], float]
) -> list[EvalRow]:
    """The rows that no other row beats at as many bits or fewer, by bits.

    Args:
        value: What is compared.
        best: `min` or `max`.
    """
    kept: list[EvalRow] = []
    for row in sorted(rows, key=lambda row: (row.effective_bits, value(row) if best is min else -value(row))):
        if not kept or (value(row) != value(kept[-1]) and best(value(row), value(kept[-1])) == value(row)):
            kept.append(row)
    return kept


def _series(row: EvalRow) -> str:
    """What is joined: one policy at several budgets."""
    return row.label if row.bits_asked is None else row.policy


def _draw_rows(
    axes: Axes,
    rows: Sequence[EvalRow],
    value: Callable[[EvalRow], float],
    error: Callable[[EvalRow], float],
    best: Callable[[float, float], float],
) -> None:
    """The front as a broad line, one standard error to each side of a figure, every series with its marks."""
    axes.line([(row.effective_bits, value(row)) for row in front(rows, value, best)], PALE, width=12)
    for row in rows:
        axes.line([(row.effective_bits, value(row) + sign * error(row)) for sign in (-1, 1)], GREY, width=1)
    names = list(dict.fromkeys(map(_series, rows)))
    axes.legend(names)
    for index, name in enumerate(names):
        mine = sorted((row for row in rows if _series(row) == name), key=lambda row: row.effective_bits)
        axes.line([(row.effective_bits, value(row)) for row in mine], colour_of(index))
        for row in mine:
            axes.mark(row.effective_bits, value(row), index)
