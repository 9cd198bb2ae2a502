"""Values along windows or layers: as a table with small curves, and as a picture."""

from __future__ import annotations

from PIL import Image, ImageDraw
from rich import box
from rich.table import Table

from wq_cli.report import canvas
from wq_cli.report.axes import LEGEND_WIDTH, Axes, colour_of
from wq_cli.report.canvas import GREY, INK, PAPER, font
from wq_cli.report.format import Glyphs
from wq_cli.report.heatmap import bins
from wq_cli.results import CurveResult

WIDTH, HEIGHT, _MARGIN = 1200, 700, 50
_TITLE, _SMALL = 24, 15
_MOST_TICKS, _SHAPE = 16, 32


def curve_table(result: CurveResult, glyphs: Glyphs) -> Table:
    """One row a curve: its shape, its first value, and its highest with its place."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("curve", "shape", f"{result.x_label} 0", "highest"):
        table.add_column(heading, justify="left" if heading in ("curve", "shape") else "right", no_wrap=True)
    for label, values in result.curves.items():
        low, high = min(values), max(values)
        drawn = [max(values[place] for place in cell) for cell in bins(len(values), _SHAPE)]
        steps = (len(glyphs.levels) - 1) / (high - low or 1.0)
        shape = "".join(glyphs.levels[round(steps * (value - low))] for value in drawn)
        table.add_row(label, shape, f"{values[0]:.3g}", f"{high:.3g} at {values.index(high)}")
    return table


def draw_curves(result: CurveResult) -> bytes:
    """Draw all curves on one pair of axes.

    Returns:
        The bytes of a PNG, `WIDTH` pixels wide.
    """
    image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
    draw = ImageDraw.Draw(image)
    title = f"{result.model.name}: {result.questions} questions of the demo world, {result.frames} frames"
    draw.text((_MARGIN, _MARGIN), canvas.fitted(draw, title, WIDTH - 2 * _MARGIN, _TITLE), INK, font(_TITLE))
    said = canvas.fitted(draw, result.says, WIDTH - 2 * _MARGIN, _SMALL)
    draw.text((_MARGIN, _MARGIN + 34), said, GREY, font(_SMALL))
    count = max(len(values) for values in result.curves.values())
    every = [value for values in result.curves.values() for value in values]
    spread = (max(every) - min(every)) or 1.0
    y_range = (max(0.0, min(every) - spread / 10), max(every) + spread / 10)
    box_ = (_MARGIN + 80, _MARGIN + 80, WIDTH - LEGEND_WIDTH, HEIGHT - _MARGIN - 50)
    axes = Axes(draw, box_, (0, max(count - 1, 1)), y_range)
    axes.frame(result.y_label, result.x_label, range(0, count, -(-count // _MOST_TICKS)))
    axes.legend(list(result.curves))
    for index, values in enumerate(result.curves.values()):
        axes.line(list(enumerate(values)), colour_of(index), width=3)
    return canvas.png(image)
