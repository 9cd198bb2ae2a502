"""The window table of `wq ask`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from wq_cli.report import format
from wq_cli.report.format import Glyphs
from wq_cli.results import WindowResult

MOST_ROWS = 32
GROUPED_ROWS = 16
MARKED = 3


@dataclass(frozen=True)
class _Row:
    """Windows that are neighbours in time, and the most relevant of them."""

    windows: Sequence[WindowResult]

    @property
    def name(self) -> str:
        first, last = self.windows[0], self.windows[-1]
        if len(self.windows) > 1:
            return f"{first.index}-{last.index}"
        return "tail" if first.role == "tail" else str(first.index)

    @property
    def best(self) -> WindowResult | None:
        scored = [window for window in self.windows if window.similarity is not None]
        return max(scored, key=relevance_of, default=None)


def relevance_of(window: WindowResult) -> float:
    return float("-inf") if window.relevance is None else window.relevance


def most_relevant(windows: Sequence[WindowResult]) -> list[WindowResult]:
    """The few windows the question is most about, best first; none where all scores are equal."""
    scored = [window for window in windows if window.relevance is not None]
    if len({window.relevance for window in scored}) < 2:
        return []
    return sorted(scored, key=relevance_of, reverse=True)[:MARKED]


def shares(windows: Sequence[WindowResult]) -> dict[int, float]:
    """Relevance of each scored window as drawn: 0 the least relevant of this video, 1 the most, by window index."""
    scored = {window.index: window.relevance for window in windows if window.relevance is not None}
    low, high = min(scored.values(), default=0.0), max(scored.values(), default=0.0)
    return {index: (value - low) / (high - low) if high > low else 0.5 for index, value in scored.items()}


def window_table(
    windows: Sequence[WindowResult], duration_seconds: float, glyphs: Glyphs, every_row: bool = False
) -> Table:
    """Windows over time: similarity, relevance, widths across the layers.

    More than `MOST_ROWS` windows are put together by time, unless `every_row`.
    """
    count = len(windows)
    is_grouped = count > MOST_ROWS and not every_row
    parts = GROUPED_ROWS if is_grouped else count
    rows = [_Row(windows[part * count // parts : (part + 1) * count // parts]) for part in range(parts)]
    top = most_relevant(windows)
    drawn = shares(windows)
    has_scores = any(window.similarity is not None for window in windows)

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("windows" if is_grouped else "window", justify="right", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    if has_scores:
        table.add_column("similarity", justify="right", no_wrap=True)
        table.add_column("relevance", no_wrap=True)
    table.add_column(f"bits {glyphs.times} {'layer-windows' if is_grouped else 'layers'}")
    for row, width_cell in zip(rows, _width_cells(rows, glyphs), strict=True):
        is_top = any(window in top for window in row.windows)
        cells: list[str | Text] = [
            Text(f"{glyphs.mark if is_top else ' '} {row.name}"),
            format.span(row.windows[0].start_seconds, row.windows[-1].end_seconds, duration_seconds, glyphs),
        ]
        if has_scores:
            cells += [_similarity(row), _relevance_bar(row, drawn, 6 if is_grouped else 10, glyphs)]
        table.add_row(*cells, width_cell, style="bold" if is_top else "")
    return table


def _similarity(row: _Row) -> str:
    return "" if row.best is None else f"{row.best.similarity:.4f}"


def _relevance_bar(row: _Row, drawn: dict[int, float], cells: int, glyphs: Glyphs) -> Text:
    """A bar of some cells and the number; the role where a window takes no part."""
    best = row.best
    if best is None or best.relevance is None:
        return Text(row.windows[0].role if len(row.windows) == 1 else "", style="dim")
    share = drawn[best.index]
    full = round(share * cells)
    return Text.assemble(
        (glyphs.bar * full, format.ramp(share)),
        (glyphs.track * (cells - full), "dim"),
        f" {best.relevance:.2f}",
    )


def count_widths(windows: Sequence[WindowResult]) -> Counter[tuple[int, int]]:
    """How often each (key bits, value bits) occurs over windows and layers."""
    return Counter(pair for window in windows for pair in zip(window.key_bits, window.value_bits, strict=True))


def _width_cells(rows: Sequence[_Row], glyphs: Glyphs) -> list[Text]:
    """The widths of each row with their counts, widest first, aligned between rows."""
    counts = [count_widths(row.windows) for row in rows]
    widths = sorted({bits for count in counts for bits in count}, reverse=True)
    cells = [Text() for _ in rows]
    for bits in widths:
        parts = [f"{format.width_name(*bits)}{glyphs.times}{count[bits]}" if count[bits] else "" for count in counts]
        room = max(map(len, parts))
        for cell, part in zip(cells, parts, strict=True):
            cell.append(" " * (bits != widths[0]) + part.rjust(room), style=format.width_colour(bits[0]))
    return cells
