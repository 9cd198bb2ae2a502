"""`wq eval`: policies over the questions of a suite, read through the packed cache."""

from __future__ import annotations

from typing import Annotated

import typer

from wq_cli import policies as registry
from wq_cli.commands import options as opt
from wq_cli.commands.bench import Policies, split_policies
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.config import Generation, Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener
from wq_cli.errors import UsageError, unknown_name

SUITES = ("scenes",)
EXAMPLES = """\
[bold]Examples[/]
$ wq eval scenes --questions 200
$ wq eval scenes --policies fp16,windowquant,random,rtn2 --frames 100
$ wq eval scenes --questions 2000 --device cuda --output scenes.json"""

Suite = Annotated[str, typer.Argument(metavar="SUITE", help=f"One of {', '.join(SUITES)}.", show_default=False)]
Questions = Annotated[int, opt.whole("--questions", panel=opt.INPUT, help="Held-out questions to ask.")]


@grouped
def evaluate(
    suite: Suite,
    *,
    questions: Questions = 200,
    frames: opt.Frames = None,
    runtime: Runtime,
    policies: Policies = None,
    quantization: Quantization,
    max_new_tokens: opt.MaxNewTokens = 32,
    output: Output,
) -> None:
    """Accuracy, KL and agreement of each policy over a suite of questions, asked through the packed cache."""
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    if questions < 1:
        raise UsageError(f"`--questions {questions}` is below 1")
    names = registry.names() if policies is None else split_policies(policies)
    output.check()

    from wq_cli import bench
    from wq_cli.report import comparison
    from wq_cli.report.format import glyphs_for

    screen = output.screen()
    settings = Settings(Sampling(frames=frames), quantization, Generation(max_new_tokens=max_new_tokens), runtime)
    with Listener(screen) as listener:
        result = bench.evaluate(settings, listener, suite=suite, policies=names, questions=questions)
    output.emit(result)
    if not output.json:
        screen.result(comparison.eval_table(result))
        screen.say("")
        screen.say(comparison.eval_conditions(result, glyphs_for(screen.stderr)))
