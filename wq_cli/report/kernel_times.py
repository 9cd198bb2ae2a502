"""The table of `wq bench kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.table import Table
from rich.text import Text

from wq_cli.report.format import Glyphs

if TYPE_CHECKING:
    from wq_cli.bench_results import KernelsResult
    from wq_kernels.bench import Row


def kernels_table(result: KernelsResult, glyphs: Glyphs) -> Table:
    """One row a format or peer: time, bytes that must move, fraction of their floor, ratio to the fastest peer."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for heading in ("batch", "tokens", "dtype", "attention"):
        table.add_column(heading, justify="left" if heading in ("dtype", "attention") else "right", no_wrap=True)
    for heading in ("time", "bytes", "of floor", "vs peer"):
        table.add_column(heading, justify="right", no_wrap=True)
    shape = None
    for row in result.rows:
        if shape not in (None, (row.batch, row.tokens, row.dtype)):
            table.add_section()
        shape = row.batch, row.tokens, row.dtype
        table.add_row(str(row.batch), f"{row.tokens:,}", row.dtype, _name(row), *_figures(row, glyphs))
    return table


def _name(row: Row) -> str:
    tile = "" if row.tile is None else ", ".join(f"{value} {key}" for key, value in row.tile.items())
    return f"{row.name} ({tile})" if tile else row.name


def _figures(row: Row, glyphs: Glyphs) -> list[str | Text]:
    if row.median_us is None or row.nbytes is None:
        return [Text("wrong" if row.is_wrong else "failed", style="red"), "", "", ""]
    speedup = "" if row.speedup is None else f"{row.speedup:.2f}{glyphs.times}"
    return [f"{row.median_us:.1f} us", f"{row.nbytes / 1e6:.1f} MB", f"{row.fraction:.0%}", speedup]


def conditions(result: KernelsResult) -> Text:
    """What the figures hold for."""
    machine = result.machine
    versions = ", ".join(f"{name} {machine[name]}" for name in ("torch", "triton", "flashinfer") if name in machine)
    return Text(
        f"{machine['gpu']}, {versions}, {machine['date']}; copies {machine['copy_gb_per_second'] / 1e3:.2f} TB/s\n"
        "one layer, one new token; floor: the bytes at the bandwidth of a copy; vs peer: the fastest one",
        style="dim",
    )
