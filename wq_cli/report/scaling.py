"""The table of `wq bench scaling`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from wq_cli.console import printable
from wq_cli.report import format
from wq_cli.report.format import Glyphs

if TYPE_CHECKING:
    from wq_cli.bench_results import ScalingResult


def scaling_table(result: ScalingResult) -> Table:
    """One row a number of frames and policy."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("frames", "tokens", "policy", "bits", "KV", "peak", "token"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for step in result.rows:
        for index, row in enumerate(step.policies):
            table.add_row(
                *((str(step.frames), f"{step.visual_tokens:,}") if index == 0 else ("", "")),
                row.policy,
                f"{row.effective_bits:.2f}",
                format.size(row.kv_bytes),
                "" if row.peak_bytes is None else format.size(row.peak_bytes),
                format.milliseconds(row.decode_ms_per_token),
            )
    return table


def conditions(result: ScalingResult, glyphs: Glyphs) -> Text:
    """What the figures hold for."""
    model = result.model
    head = f"{printable(model.name)} on {model.device}, {model.dtype}, {model.backend}"
    versions = ", ".join([*(f"{name} {version}" for name, version in result.versions.items()), result.date])
    parts = [head, f"batch {result.batch}", f"{result.decode_tokens} tokens decoded"]
    return Text(f" {glyphs.dot} ".join(parts) + f"\n{versions}", style="dim")
