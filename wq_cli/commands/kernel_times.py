"""`wq bench kernels`: decode attention over packed windows beside other attention, on one GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.console import Listener
from wq_cli.errors import DeviceError, UsageError

EXAMPLES = """\
[bold]Examples[/]
$ wq bench kernels
$ wq bench kernels --output kernels.json
$ wq bench kernels --sweep --seconds 300 --json"""

Sweep = Annotated[bool, opt.option("--sweep", panel=opt.INPUT, help="Other numbers of registers in place of peers.")]
Seconds = Annotated[
    float, opt.number("--seconds", panel=opt.INPUT, help="Begin no new shape after this time.", metavar="SECONDS")
]


@grouped
def kernels(*, sweep: Sweep = False, seconds: Seconds = 140.0, output: Output) -> None:
    """Measure decode attention on a GPU: ours at each width, PyTorch's flash and cuDNN, FlashInfer where installed."""
    if seconds <= 0:
        raise UsageError(f"`--seconds {seconds:g}` is not above 0")
    output.check()

    from wq_cli.bench_results import KernelsResult
    from wq_cli.report import kernel_times as report
    from wq_cli.report.format import glyphs_for
    from wq_kernels import bench

    if reason := bench.obstacle():
        raise DeviceError(f"the kernels cannot be measured here: {reason}")
    screen, count = output.screen(), bench.count(sweep)
    with Listener(screen) as listener:
        listener.stage("measure", count)
        machine, rows = bench.run(other_tiles=sweep, seconds=seconds, on_row=lambda row: listener.advance())
    notices = []
    if len(rows) < count:
        notices.append(f"{count - len(rows)} of {count} rows are left out: the time was up (`--seconds`)")
    if not sweep and bench.FLASHINFER not in bench.peers():
        notices.append("FlashInfer is left out: the package `flashinfer` is not installed")
    notices += [f"{row.name}, {row.dtype}, {row.batch} x {row.tokens}: {row.error}" for row in rows if row.error]
    result = KernelsResult("bench kernels", machine, tuple(rows), tuple(notices))
    output.emit(result)
    if not output.json:
        screen.result(report.kernels_table(result, glyphs_for(screen.stdout)))
        screen.say("")
        screen.say(report.conditions(result))
        for notice in notices:
            screen.notice(notice)
    if any(row.is_wrong for row in rows):
        raise typer.Exit(1)
