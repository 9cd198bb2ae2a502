"""`wq calibrate`: what a policy wants to know of a model, measured once and kept in its profile."""

from __future__ import annotations

from typing import Annotated

import typer

from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.config import Limits, Runtime, Sampling, Settings
from wq_cli.console import Listener

EXAMPLES = """\
[bold]Examples[/]
$ wq calibrate --profile llava-onevision-0.5b
$ wq calibrate --profile llava-onevision-7b talk.mp4 match.mp4 --frames 64"""

Videos = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[VIDEO]...", help="Clips to measure on; rendered scenes when there are none.", show_default=False
    ),
]


@grouped
def calibrate(videos: Videos = None, *, sampling: Sampling, limits: Limits, runtime: Runtime, output: Output) -> None:
    """Measure the sensitivity of each layer (eq 9) on a few clips and keep it in the profile for later runs."""
    output.check()
    from wq_cli import calibration

    screen = output.screen()
    with Listener(screen) as listener:
        settings = Settings(sampling, runtime=runtime, limits=limits)
        result = calibration.calibrate(videos or [], settings, listener)
    output.emit(result)
    if not output.json:
        screen.result(" ".join(f"{s:.4f}" for s in result.sensitivity))
        screen.say(
            f"\ns_i of {len(result.sensitivity)} layers over {len(result.clips)} clips, which differ by at most "
            f"{result.largest_spread:.4f}; kept in {result.path}"
        )
