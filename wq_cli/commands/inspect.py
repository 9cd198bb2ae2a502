"""`wq inspect`: where a video is about something, without an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.commands.parsing import parse_text
from wq_cli.config import Limits, Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener, printable

EXAMPLES = """\
[bold]Examples[/]
$ wq inspect clip.mp4 --prompt "a dog" --prompt "a red circle"
$ wq inspect match.mp4 --prompt "a goal is scored" --png map.png
$ wq inspect clip.mp4 --prompt "a dog" --score-norm rank --json"""

Prompts = Annotated[
    list[str],
    opt.option(
        "--prompt",
        panel=opt.INPUT,
        help="What to look for; give it again for more rows.",
        parser=parse_text,
        metavar="TEXT",
    ),
]
Png = Annotated[
    Path | None, opt.option("--png", panel=opt.OUTPUT, help="Draw the map over the frames.", metavar="FILE")
]


@grouped
def inspect(
    video: opt.Video,
    *,
    prompts: Prompts,
    sampling: Sampling,
    limits: Limits,
    runtime: Runtime,
    policy: opt.Policy = "windowquant",
    quantization: Quantization,
    png: Png = None,
    all_windows: opt.AllWindows = False,
    output: Output,
) -> None:
    """Show which windows of a video are about something, and the bits each layer gives them."""
    settings = Settings(sampling, replace(quantization, policy=policy), runtime=runtime, limits=limits)
    output.check(picture=png, video=video)

    from wq_cli import pipeline
    from wq_cli.report import heatmap, summary, tables
    from wq_cli.report.format import glyphs_for

    screen = output.screen()
    with Listener(screen) as listener:
        result, clip = pipeline.inspect(video, prompts, settings, listener)
    if png:
        from wq_cli.report.files import write
        from wq_cli.report.png import draw_map

        write(png, draw_map(result, clip.frames))
    output.emit(result)
    if not output.json:
        screen.say(summary.inspect_summary(result, glyphs_for(screen.stderr), verbose=output.verbose))
        screen.say("")
        glyphs, width = glyphs_for(screen.stdout), screen.stdout.width
        screen.result(heatmap.heat_map(result, width, glyphs, every_prompt=output.verbose))
        if all_windows:
            for prompt, windows in zip(prompts, result.windows, strict=True):
                screen.result(f"\n{printable(prompt)}")
                screen.result(tables.window_table(windows, result.video.duration_seconds, glyphs, every_row=True))
        for notice in result.notices:
            screen.notice(notice)
