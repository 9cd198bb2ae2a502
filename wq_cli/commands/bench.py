"""`wq bench`: memory, speed and fidelity of each policy, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wq_cli import policies as registry
from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.commands.parsing import parse_text
from wq_cli.config import Generation, Limits, Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener
from wq_cli.errors import UsageError

EXAMPLES = """\
[bold]Examples[/]
$ wq bench --frames 100
$ wq bench --policies fp16,windowquant,rtn2 --batch 8 --device cuda
$ wq bench --video match.mp4 --prompt "who scores?" --plot bench.png
$ wq bench -p llava-onevision-7b --random-weights --frames 100 --json
$ wq bench --peers --frames 100
$ wq bench ablation window --plot window.png"""

Video = Annotated[
    str | None,
    opt.option("--video", panel=opt.INPUT, help="Clip to use in place of a rendered one.", metavar="FILE"),
]
Prompt = Annotated[
    str, opt.option("--prompt", panel=opt.INPUT, help="The question.", parser=parse_text, metavar="TEXT")
]
Policies = Annotated[
    str | None,
    opt.option(
        "--policies",
        panel=opt.QUANTIZATION,
        help=f"Rows of the table, joined by commas: {', '.join(registry.names())}.",
        metavar="NAMES",
    ),
]
Batch = Annotated[int, opt.whole("--batch", "-b", panel=opt.INPUT, help="Copies of the request side by side.")]
DecodeTokens = Annotated[int, opt.whole("--decode-tokens", panel=opt.ANSWER, help="Tokens timed after the first.")]
FidelityTokens = Annotated[
    int, opt.whole("--fidelity-tokens", panel=opt.ANSWER, help="Tokens compared with fp16; 0 skips it.")
]
RandomWeights = Annotated[
    bool, opt.option("--random-weights", panel=opt.MODEL, help="The profile's architecture without its weights.")
]
Peers = Annotated[
    bool, opt.option("--peers", panel=opt.MODEL, help="Rows of transformers' own caches too, those that run here.")
]
Plot = Annotated[Path | None, opt.option("--plot", panel=opt.OUTPUT, help="Draw the figures.", metavar="FILE")]

# Beyond any machine, and small enough for PyTorch to say so.
_MOST = 2**20


def check_count(option: str, count: int, least: int = 1) -> None:
    """
    Raises:
        UsageError: There are too few, or more than any machine has room for.
    """
    if count < least:
        raise UsageError(f"`{option} {count}` is below {least}")
    if count > _MOST:
        raise UsageError(f"`{option} {count}` is above {_MOST}")


@grouped
def bench(
    ctx: typer.Context,
    *,
    video: Video = None,
    prompt: Prompt = "what happens?",
    sampling: Sampling,
    limits: Limits,
    batch: Batch = 1,
    runtime: Runtime,
    random_weights: RandomWeights = False,
    peers: Peers = False,
    policies: Policies = None,
    quantization: Quantization,
    decode_tokens: DecodeTokens = 32,
    fidelity_tokens: FidelityTokens = 32,
    compile_layers: opt.CompileLayers = Generation.compile_layers,
    plot: Plot = None,
    output: Output,
) -> None:
    """Measure policies side by side: memory, speed, and fidelity through the packed cache."""
    if ctx.invoked_subcommand:
        if any(source.name == "COMMANDLINE" for source in map(ctx.get_parameter_source, ctx.params) if source):
            raise UsageError(f"options of `{ctx.invoked_subcommand}` come after its name")
        return
    for name, value, least in (
        ("--batch", batch, 1),
        ("--decode-tokens", decode_tokens, 1),
        ("--fidelity-tokens", fidelity_tokens, 0),
    ):
        check_count(name, value, least)
    names = None if policies is None else split_policies(policies)
    output.check(picture=plot, video=video)

    from wq_cli import bench as benchmark
    from wq_cli.report import comparison
    from wq_cli.report.format import glyphs_for

    screen = output.screen()
    with Listener(screen) as listener:
        result = benchmark.run(
            video,
            prompt,
            Settings(sampling, quantization, Generation(compile_layers=compile_layers), runtime, limits),
            listener,
            policies=names or benchmark.DEFAULT_POLICIES,
            batch=batch,
            decode_tokens=decode_tokens,
            fidelity_tokens=fidelity_tokens,
            random_weights=random_weights,
            with_peers=peers,
        )
    if plot:
        from wq_cli.report.files import write
        from wq_cli.report.plot import draw_plot

        write(plot, draw_plot(result))
    output.emit(result)
    if not output.json:
        glyphs = glyphs_for(screen.stdout)
        screen.result(comparison.bench_table(result, screen.stdout.width, glyphs))
        screen.say("")
        screen.say(comparison.conditions(result, glyphs_for(screen.stderr)))
        if sentence := comparison.slower(result, glyphs_for(screen.stderr)):
            screen.notice(sentence)
        for notice in result.notices:
            screen.notice(notice)


def split_policies(text: str) -> list[str]:
    """Names joined by commas.

    Raises:
        UsageError: One of them is no policy.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        registry.check(name)
    if not names:
        raise UsageError("`--policies` names no policy", f"known: {', '.join(registry.names())}")
    return names
