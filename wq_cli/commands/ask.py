"""`wq ask`: one question about one video."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.commands.parsing import parse_text
from wq_cli.config import Generation, Limits, Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener
from wq_cli.errors import UsageError
from wq_cli.results import AskResult

EXAMPLES = """\
[bold]Examples[/]
$ wq ask clip.mp4 "what happens?"
$ wq ask clip.mp4 "what comes after the dog?" --frames 64 --bits 4
$ wq ask talk.webm "who speaks first?" --start 1:30 --end 5:00
$ echo "is there a cat?" | wq ask clip.mp4 - --json --output answer.json"""

Prompt = Annotated[
    str, typer.Argument(metavar="PROMPT", help="The question; `-` reads it from stdin.", show_default=False)
]


@grouped
def ask(
    video: opt.Video,
    prompt: Prompt,
    *,
    sampling: Sampling,
    limits: Limits,
    runtime: Runtime,
    policy: opt.Policy = "windowquant",
    quantization: Quantization,
    generation: Generation,
    all_windows: opt.AllWindows = False,
    output: Output,
) -> None:
    """Answer a question about a video: where it is about the question, how many bits each window got, the answer."""
    settings = Settings(sampling, replace(quantization, policy=policy), generation, runtime, limits)
    output.check(video=video)
    question = _question(video, prompt)

    from wq_cli import pipeline
    from wq_cli.report import summary, tables
    from wq_cli.report.format import glyphs_for

    screen = output.screen()
    glyphs = glyphs_for(screen.stderr)

    known: list[str] = []

    def show(result: AskResult) -> None:
        screen.say(tables.window_table(result.windows, result.video.duration_seconds, glyphs, every_row=all_windows))
        screen.say("")
        screen.say(summary.ask_summary(result, glyphs, verbose=output.verbose))
        known.extend(result.notices)
        for notice in known:
            screen.notice(notice)
        screen.say("")

    with Listener(
        screen,
        on_prepared=None if output.json else show,
        stream=not output.json,
        outlives_stdout=output.file is not None,
    ) as listener:
        result = pipeline.ask(video, question, settings, listener)
    output.emit(result)
    if listener.lost:
        raise listener.lost
    if not output.json:
        screen.say(summary.speed(result, glyphs))
        for notice in result.notices:
            if notice not in known:
                screen.notice(notice)


def _question(video: str, prompt: str) -> str:
    """The question itself, read from stdin for `-`.

    Raises:
        UsageError: stdin is the video already.
        BadParameter: There is no question.
    """
    if prompt == "-":
        if video == "-":
            raise UsageError("the video and the question cannot both come from stdin")
        prompt = sys.stdin.read().strip()
    return parse_text(prompt)
