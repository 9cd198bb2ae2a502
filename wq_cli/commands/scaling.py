"""`wq bench scaling`: memory and speed of each policy while the video grows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from wq_cli.commands import bench
from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.commands.parsing import parse_wholes
from wq_cli.config import Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener

EXAMPLES = """\
[bold]Examples[/]
$ wq bench scaling --frames 25,50,100 --plot scaling.png
$ wq bench scaling -p llava-onevision-7b --random-weights --plot scaling.png --output scaling.json"""

FramesList = Annotated[
    Any,  # a tuple, made by the parser
    opt.option("--frames", "-n", panel=opt.INPUT, help="Numbers of frames.", parser=parse_wholes, metavar="N,.."),
]
Plot = Annotated[
    Path | None,
    opt.option("--plot", panel=opt.OUTPUT, help="Draw time against KV size, memory against frames.", metavar="FILE"),
]


@partial(grouped, replaced=("frames", "fps"))
def scaling(
    *,
    video: bench.Video = None,
    prompt: bench.Prompt = "what happens?",
    frames: FramesList = "25,50,100,200",
    sampling: Sampling,
    batch: bench.Batch = 1,
    runtime: Runtime,
    random_weights: bench.RandomWeights = False,
    policies: bench.Policies = "fp16,windowquant",
    quantization: Quantization,
    decode_tokens: bench.DecodeTokens = 32,
    plot: Plot = None,
    output: Output,
) -> None:
    """Measure policies while the video grows: time per token against KV size, memory against frames."""
    for name, values in (("--frames", frames), ("--batch", (batch,)), ("--decode-tokens", (decode_tokens,))):
        for value in values:
            bench.check_count(name, value)
    names = bench.split_policies(policies or "")
    output.check(picture=plot, video=video)

    from wq_cli.bench import scaling as benchmark
    from wq_cli.report import scaling as report
    from wq_cli.report.format import glyphs_for

    screen = output.screen()
    with Listener(screen) as listener:
        result = benchmark.run(
            video,
            prompt,
            Settings(sampling, quantization, runtime=runtime),
            listener,
            frames=frames,
            policies=names,
            batch=batch,
            decode_tokens=decode_tokens,
            random_weights=random_weights,
        )
    if plot:
        from wq_cli.report.files import write
        from wq_cli.report.plot import draw_scaling

        write(plot, draw_scaling(result))
    output.emit(result)
    if not output.json:
        screen.result(report.scaling_table(result))
        screen.say("")
        screen.say(report.conditions(result, glyphs_for(screen.stderr)))
        for notice in result.notices:
            screen.notice(notice)
