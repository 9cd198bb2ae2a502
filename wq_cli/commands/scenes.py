"""`wq scenes`: clips of the world that the demo model knows."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output

EXAMPLES = """\
[bold]Examples[/]
$ wq scenes make clip.mp4
$ wq scenes make clip.mp4 --seed 7 --seconds 20 --json"""

Target = Annotated[Path, typer.Argument(metavar="FILE", help="Video to write, such as clip.mp4.", show_default=False)]
Seed = Annotated[int, opt.whole("--seed", panel=opt.INPUT, help="Another seed, another clip.")]
Seconds = Annotated[float, opt.number("--seconds", panel=opt.INPUT, help="Length of the clip.")]
Fps = Annotated[float, opt.number("--fps", panel=opt.INPUT, help="Frames per second.")]
Size = Annotated[int, opt.whole("--size", panel=opt.INPUT, help="Width and height in pixels.")]


@dataclass(frozen=True)
class SceneResult:
    """What `wq scenes make` prints: questions that fit the clip, with their answers."""

    command: str
    path: str
    seed: int
    questions: tuple[dict[str, Any], ...]


@grouped
def make(
    path: Target, *, seed: Seed = 0, seconds: Seconds = 12.0, fps: Fps = 24.0, size: Size = 448, output: Output
) -> None:
    """Render a clip and print questions about it with their answers."""
    output.check(path)
    from rich.table import Table
    from rich.text import Text

    from wq_cli.scenes.make import make as render

    questions = render(path, seed=seed, seconds=seconds, fps=fps, size=size)
    output.emit(SceneResult("scenes make", str(path), seed, tuple(asdict(question) for question in questions)))
    if not output.json:
        screen = output.screen()
        grid = Table.grid(padding=(0, 3))
        grid.add_column()
        grid.add_column(style="dim")
        for question in questions:
            grid.add_row(Text(question.text), Text(question.answer))
        screen.result(grid)
        screen.say("")
        if questions:  # the last is the story; the first may ask for what is not there
            screen.say(f'try it: wq ask {shlex.quote(str(path))} "{questions[-1].text}"')
