"""`wq calibrate`: what a policy wants to know of a model, measured once and kept in its profile."""

from __future__ import annotations

from typing import Annotated

import typer

from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.config import Limits, Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener
from wq_cli.errors import unknown_name

EXAMPLES = """\
[bold]Examples[/]
$ wq calibrate --profile llava-onevision-0.5b
$ wq calibrate --profile llava-onevision-7b talk.mp4 match.mp4 --frames 64
$ wq calibrate --profile llava-onevision-7b --policy kvtuner"""

# Those of `wq_cli.measurements`, whose import is heavy; a test holds the two together.
POLICIES = ("windowquant", "focus", "kvtuner", "kvmix", "skvq", "smoothquant")

Videos = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[VIDEO]...", help="Clips to measure on; rendered scenes when there are none.", show_default=False
    ),
]

Policy = Annotated[
    str,
    opt.option("--policy", panel=opt.QUANTIZATION, help=f"Whom it is for: {', '.join(POLICIES)}.", metavar="NAME"),
]


@grouped
def calibrate(
    videos: Videos = None,
    *,
    sampling: Sampling,
    policy: Policy = POLICIES[0],
    limits: Limits,
    runtime: Runtime,
    output: Output,
) -> None:
    """Measure the layers of a model on a few clips, for one policy, and keep it beside the profile for later runs.

    For windowquant that is the sensitivity of each layer (eq 9).
    """
    if policy not in POLICIES:
        raise unknown_name("policy to calibrate", policy, POLICIES)
    output.check()
    from wq_cli import calibration

    screen = output.screen()
    with Listener(screen) as listener:
        settings = Settings(sampling, Quantization(policy=policy), runtime=runtime, limits=limits)
        result = calibration.calibrate(videos or [], settings, listener)
    output.emit(result)
    if not output.json:
        for name, values in result.measured.items():
            if isinstance(values[0], float):
                screen.result(f"{name}: {' '.join(f'{value:.4g}' for value in values)}")
        screen.say(
            f"\nmeasured for {policy} over {len(result.clips)} clips, which differ by at most "
            f"{result.largest_spread:.4g}; kept in {result.path}"
        )
