"""`wq eval`: policies over the questions of a suite, read through the packed cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from wq_cli import policies as registry
from wq_cli import suites
from wq_cli.commands import options as opt
from wq_cli.commands.bench import Policies, split_policies
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.commands.parsing import parse_numbers
from wq_cli.config import AnswerMode, Generation, Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener
from wq_cli.errors import UsageError, unknown_name

EXAMPLES = """\
[bold]Examples[/]
$ wq eval scenes --questions 200
$ wq eval scenes --policies windowquant,random,rtn2 --bits 3.5,4,5 --plot front.png
$ wq eval nextqa --folder NExT-QA -p llava-onevision-7b --record nextqa.jsonl
$ wq eval mvbench --folder MVBench --answer letter --frames 16 --output mvbench.json"""

Suite = Annotated[str, typer.Argument(metavar="SUITE", help=f"One of {', '.join(suites.NAMES)}.", show_default=False)]
Folder = Annotated[
    Path | None,
    opt.option("--folder", panel=opt.INPUT, help="Where a public suite lies, as handed out.", metavar="PATH"),
]
Questions = Annotated[
    int | None, opt.whole("--questions", panel=opt.INPUT, help="Questions to ask, drawn by --seed; else all of them.")
]
BitsList = Annotated[
    Any,  # a tuple, made by the parser
    opt.option(
        "--bits",
        panel=opt.QUANTIZATION,
        help="Budgets in average bits, a row for each: 3.5,4,5.",
        parser=parse_numbers,
        metavar="N,..",
    ),
]
Mode = Annotated[
    AnswerMode, opt.option("--answer", panel=opt.ANSWER, help="How an option is chosen", choices=AnswerMode)
]
RecordFile = Annotated[
    Path | None,
    opt.option("--record", panel=opt.OUTPUT, help="JSON line per question; a cut run goes on.", metavar="FILE"),
]
Plot = Annotated[
    Path | None, opt.option("--plot", panel=opt.OUTPUT, help="Draw KL and accuracy against bits.", metavar="FILE")
]


@partial(grouped, replaced=("bits",))
def evaluate(
    suite: Suite,
    *,
    folder: Folder = None,
    questions: Questions = None,
    frames: opt.Frames = None,
    runtime: Runtime,
    policies: Policies = None,
    bits: BitsList = None,
    quantization: Quantization,
    answer: Mode = "likelihood",
    max_new_tokens: opt.MaxNewTokens = 32,
    record: RecordFile = None,
    plot: Plot = None,
    output: Output,
) -> None:
    """Accuracy, KL and agreement of each policy over a suite of questions, asked through the packed cache."""
    if suite not in suites.NAMES:
        raise unknown_name("suite", suite, suites.NAMES)
    if questions is not None and questions < 1:
        raise UsageError(f"`--questions {questions}` is below 1")
    names = registry.names() if policies is None else split_policies(policies)
    output.check(record, picture=plot)

    from wq_cli.bench import evaluate as measuring
    from wq_cli.report import comparison
    from wq_cli.report.format import glyphs_for

    screen = output.screen()
    settings = Settings(Sampling(frames=frames), quantization, Generation(max_new_tokens=max_new_tokens), runtime)
    asked = suites.Questions(suite, folder, questions, answer)
    rows = measuring.variants(quantization, names, bits or ())
    with Listener(screen) as listener:
        result = measuring.evaluate(settings, listener, asked, rows, record=record, leave_out=policies is None)
    if plot:
        from wq_cli.report.files import write
        from wq_cli.report.front import draw_front

        write(plot, draw_front(result))
    output.emit(result)
    if not output.json:
        screen.result(comparison.eval_table(result, screen.stdout.width))
        screen.say("")
        screen.say(comparison.eval_conditions(result, screen.stdout.width, glyphs_for(screen.stderr)))
        for notice in result.notices:
            screen.notice(notice)
