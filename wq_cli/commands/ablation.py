"""`wq bench ablation`: one of the WindowQuant paper's experiments, on the demo world or a public suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wq_cli import suites
from wq_cli.commands import options as opt
from wq_cli.commands.bench import Plot
from wq_cli.commands.eval import Folder, Mode
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.config import Generation, Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener, Screen
from wq_cli.errors import UsageError, unknown_name

if TYPE_CHECKING:
    from wq_cli.results import AblationResult, CurveResult, InspectResult

VARIANTS = ("grouping", "scorer", "parts", "window", "alpha")
LOOKS = ("prompts", "first-tokens", "layers")
NAMES = (*VARIANTS, *LOOKS)
EXAMPLES = """\
[bold]Examples[/]
$ wq bench ablation scorer --questions 500
$ wq bench ablation window --plot window.png --output window.json
$ wq bench ablation parts --suite egoschema --folder EgoSchema -p llava-onevision-7b
$ wq bench ablation first-tokens --plot first.png"""

Name = Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(NAMES)}.", show_default=False)]
Suite = Annotated[
    str, opt.option("--suite", panel=opt.INPUT, help=f"What is asked: {', '.join(suites.NAMES)}.", metavar="NAME")
]
Questions = Annotated[int, opt.whole("--questions", panel=opt.INPUT, help="Questions to ask, drawn by --seed.")]


@grouped
def ablation(
    name: Name,
    *,
    suite: Suite = suites.SCENES,
    folder: Folder = None,
    questions: Questions = 100,
    frames: opt.Frames = None,
    runtime: Runtime,
    quantization: Quantization,
    answer: Mode = "likelihood",
    max_new_tokens: opt.MaxNewTokens = 32,
    plot: Plot = None,
    output: Output,
) -> None:
    """Repeat an experiment of the WindowQuant paper: changed settings side by side, or a look inside the model."""
    if name not in NAMES:
        raise unknown_name("ablation", name, NAMES)
    if questions < 1:
        raise UsageError(f"`--questions {questions}` is below 1")
    if name in LOOKS and (suite != suites.SCENES or folder is not None):
        raise UsageError(f"`{name}` looks at scenes of the demo world", "leave `--suite` and `--folder` away")
    output.check(picture=plot)

    screen = output.screen()
    settings = Settings(Sampling(frames=frames), quantization, Generation(max_new_tokens=max_new_tokens), runtime)
    with Listener(screen) as listener:
        asked = suites.Questions(suite, folder, questions, answer)
        result, picture = _run(name, settings, listener, asked)
    if plot:
        from wq_cli.report.files import write

        write(plot, picture())
    output.emit(result)
    if not output.json:
        _show(screen, result)


def _run(name: str, settings: Settings, listener: Listener, asked: suites.Questions) -> tuple[Any, Callable[[], bytes]]:
    """(The result, what draws it)."""
    if name in VARIANTS:
        from wq_cli.bench import ablations
        from wq_cli.report.front import draw_front

        changed = ablations.run(name, settings, listener, asked)
        return changed, lambda: draw_front(changed.evaluation)
    from wq_cli.bench import looks

    if name == "prompts":
        from wq_cli.report.png import draw_map

        map_, clip = looks.prompts(settings, listener)
        return map_, lambda: draw_map(map_, clip.frames)
    from wq_cli.report.curves import draw_curves

    look = looks.first_tokens if name == "first-tokens" else looks.layers
    curves = look(settings, listener, asked.count)
    return curves, lambda: draw_curves(curves)


def _show(screen: Screen, result: AblationResult | CurveResult | InspectResult) -> None:
    from rich.text import Text

    from wq_cli.report import comparison, curves, heatmap
    from wq_cli.report.format import glyphs_for
    from wq_cli.results import AblationResult, CurveResult

    glyphs, width = glyphs_for(screen.stdout), screen.stdout.width
    if isinstance(result, AblationResult):
        screen.result(comparison.eval_table(result.evaluation, width))
        screen.say("")
        screen.say(comparison.eval_conditions(result.evaluation, width, glyphs_for(screen.stderr)))
        theirs = "; ".join(f"{label} {figures}" for label, figures in result.paper.items())
        screen.say(Text(f"the paper ({result.source}): {theirs}", style="dim"))
        for notice in result.evaluation.notices:
            screen.notice(notice)
    elif isinstance(result, CurveResult):
        screen.result(curves.curve_table(result, glyphs))
        screen.say("")
        screen.say(Text(f"{result.source}: {result.says}; {result.questions} questions of the demo world", style="dim"))
    else:
        screen.result(heatmap.heat_map(result, width, glyphs))
