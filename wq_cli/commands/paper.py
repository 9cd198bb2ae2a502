"""`wq bench paper`: the paper's experiments on speed and memory, our figures beside its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.commands.parsing import parse_numbers
from wq_cli.config import Runtime, Settings
from wq_cli.console import Listener
from wq_cli.errors import DeviceError, UsageError

EXAMPLES = """\
[bold]Examples[/]
$ wq bench paper --output paper.json
$ wq bench paper --memory-gb 24
$ wq bench paper --tiny --device cpu"""

# A petabyte.
MOST_GB = 1e6

Tiny = Annotated[
    bool, opt.option("--tiny", panel=opt.MODEL, help="Two small layers and small batches: that it runs, anywhere.")
]
MemoryGb = Annotated[
    Any,  # a tuple, made by the parser
    opt.option(
        "--memory-gb",
        panel=opt.MODEL,
        help="Cards that are filled, in GB; 24,48,80 unless --tiny.",
        parser=parse_numbers,
        metavar="N,..",
    ),
]
Seconds = Annotated[
    float | None,
    opt.number("--seconds", panel=opt.MODEL, help="Begin to fill no card after this time.", metavar="SECONDS"),
]


@grouped
def paper(
    *,
    tiny: Tiny = False,
    memory_gb: MemoryGb = None,
    seconds: Seconds = None,
    device: opt.Device = Runtime.device,
    dtype: opt.Dtype = Runtime.dtype,
    output: Output,
) -> None:
    """Repeat the WindowQuant paper's experiments on speed and memory, on random weights of LLaVA-OneVision-7B."""
    if memory_gb and min(memory_gb) <= 0:
        raise UsageError(f"`--memory-gb {min(memory_gb):g}` is not above 0")
    if memory_gb and max(memory_gb) > MOST_GB:
        raise UsageError(f"`--memory-gb {max(memory_gb):g}` is above {MOST_GB:g}")
    if seconds is not None and seconds <= 0:
        raise UsageError(f"`--seconds {seconds:g}` is not above 0")
    output.check()

    from wq_cli.bench import paper as benchmark
    from wq_cli.models.loading import choose_device
    from wq_cli.report import paper as report
    from wq_cli.report.format import glyphs_for

    if not tiny and choose_device(device).type != "cuda":
        raise DeviceError("the paper's experiments take an NVIDIA GPU", "`--tiny` runs a small model anywhere")
    sizes = benchmark.TINY if tiny else benchmark.Sizes()
    if memory_gb:
        sizes = replace(sizes, memory_gb=memory_gb)
    screen = output.screen()
    with Listener(screen) as listener:
        result = benchmark.run(Settings(runtime=Runtime(device=device, dtype=dtype)), listener, sizes, tiny, seconds)
    output.emit(result)
    if not output.json:
        screen.result(report.paper_table(result))
        screen.result(report.capacity_table(result))
        screen.say("")
        screen.say(report.conditions(result, glyphs_for(screen.stderr)))
        for row in result.rows:
            if row.error:
                screen.notice(f"{row.experiment}, {row.variant}: {row.error}")
        for card in result.capacities:
            if card.error:
                screen.notice(f"{card.memory_gb:g} GB, {card.policy}: {card.error}")
