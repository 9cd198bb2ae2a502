"""The tables of `wq bench paper`: our figures beside the paper's, and what cards hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from wq_cli.console import printable
from wq_cli.report.format import Glyphs

if TYPE_CHECKING:
    from wq_cli.bench_results import PaperResult


def paper_table(result: PaperResult) -> Table:
    """One row a figure of the paper."""
    table = _table("experiment", "", "paper", "here", "unit", "bits")
    before = None
    for row in result.rows:
        here = Text("failed", style="red") if row.ours is None else number(row.ours)
        bits = "" if row.effective_bits is None else f"{row.effective_bits:.2f}"
        experiment = "" if row.experiment == before else row.experiment
        before = row.experiment
        table.add_row(experiment, row.variant, number(row.paper), here, row.unit, bits)
    return table


def capacity_table(result: PaperResult) -> Table:
    """One row a card and policy."""
    table = _table("card", "policy", f"batch of {result.batch_frames} frames", "frames")
    for row in result.capacities:
        figures = ("not measured" if size is None else f"{size:,}" for size in (row.batch, row.frames))
        table.add_row(f"{row.memory_gb:g} GB", row.policy, *figures)
    return table


def number(value: float) -> str:
    """Three digits at least, all of those before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(*headings: str) -> Table:
    """Words first, then figures."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < 2 or heading == "unit" else "right", overflow="fold")
    return table


def conditions(result: PaperResult, glyphs: Glyphs) -> Text:
    """What the figures hold for."""
    model = result.model
    versions = ", ".join([*(f"{name} {version}" for name, version in result.versions.items()), result.date])
    found = {
        "allocator": "found with an allocator that gets no more, to within 2%",
        "counted": "counted from weights, prompts and cache, to within 2%",
    }
    lines = [
        f"{printable(model.name)} on {model.device}, {model.dtype}, {model.backend} {glyphs.dot} {versions}",
        "the paper's figures are of arXiv 2605.02262, on its own card; bits are those of our cache",
        f"what a card of 10**9 bytes a GB holds: {found[result.memory_from]}",
    ]
    return Text("\n".join(lines), style="dim")
