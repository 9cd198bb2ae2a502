"""Two consoles: stdout carries the result, stderr everything said about it. Progress and answers never mix."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

    from wq_cli.results import AskResult

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Room for the figures of every table.
_TABLE_COLUMNS = 80
STAGE_LABELS = {
    "load": "loading the model",
    "download": "downloading",
    "calibrate": "measuring clips",
    "decode": "decoding frames",
    "encode": "encoding frames",
    "score": "scoring windows",
    "prefill": "reading the prompt",
    "generate": "answering",
}


def prepare_streams() -> None:
    """Let every text pass: what an encoding lacks (cp1252, ASCII) is escaped, and closed streams swallow.

    On stdin it becomes surrogates, as in arguments, out of which `parse_text` reads UTF-8.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="surrogateescape" if name == "stdin" else "backslashreplace")


def abandon(stream: TextIO) -> None:
    """Send what is left for a stream nowhere, so that closing it at exit stays quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def printable(text: str) -> str:
    """`text` with control characters and undecodable bytes spelled out, so that it cannot steer a terminal."""

    def escape(match: re.Match[str]) -> str:
        code = ord(match[0])
        return f"\\x{code - 0xDC00 if 0xDC80 <= code <= 0xDCFF else code:02x}"

    return _UNPRINTABLE.sub(escape, text)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            raise  # called while BrokenPipeError is handled; `app.main` ends the run

    return Quiet(stderr=stderr, markup=False, emoji=False, highlight=False)


def _show(console: Console, renderable: RenderableType) -> None:
    """Print text literally, and lines of it and tables of figures whole: a terminal that is too narrow breaks them."""
    from rich.table import Table

    if isinstance(renderable, str):  # a path in it may be what another program reads
        console.print(printable(renderable), soft_wrap=True)
        return
    width = console.width
    if isinstance(renderable, Table) and renderable.box:
        console.width = max(width, _TABLE_COLUMNS)
    try:
        console.print(renderable)
    finally:
        console.width = width


class Screen:
    """What a command shows.

    Args:
        quiet: Nothing but the result and errors.
        progress: Show stages while they run, where stderr is a terminal that can redraw.
    """

    def __init__(self, quiet: bool = False, progress: bool = True) -> None:
        self.stdout = _console(stderr=False)
        self.stderr = _console(stderr=True)
        self.quiet = quiet
        self.progress = (
            progress
            and not quiet
            and not os.environ.get("WQ_NO_PROGRESS")
            and sys.stderr.isatty()
            and not self.stderr.is_dumb_terminal
        )

    def result(self, renderable: RenderableType) -> None:
        """Print a table or a map that is the result."""
        _show(self.stdout, renderable)

    def say(self, renderable: RenderableType) -> None:
        """Print what accompanies the result, which still counts where nobody takes this."""
        if self.quiet:
            return
        try:
            _show(self.stderr, renderable)
        except OSError:
            self.quiet = True
            abandon(sys.stderr)

    def notice(self, text: str) -> None:
        """Print one thing the user should know."""
        from rich.text import Text

        self.say(Text.assemble(("note: ", "cyan"), printable(text)))


def _one_line(text: str) -> str:
    return printable(text).replace("\n", "\\n")


def show_error(message: str, hint: str | None) -> None:
    """`error: ...` and, after an empty line, `hint: ...` on stderr."""
    from rich.text import Text

    console = _console(stderr=True)
    try:
        console.print(Text.assemble(("error: ", "bold red"), _one_line(message)), soft_wrap=True)
        if hint:
            console.print(Text.assemble("\n", ("hint: ", "cyan"), _one_line(hint)), soft_wrap=True)
    except OSError:  # the exit code tells it too
        abandon(sys.stderr)


class Listener:
    """Shows a run while it goes on (`wq_cli.pipeline.Listener`); use as a context manager.

    The progress block is gone before `on_prepared` and before the first token.

    Args:
        screen: Where to show it.
        on_prepared: Called with everything known before the answer.
        stream: Print tokens to stdout as they come.
        outlives_stdout: Let the run go on when stdout takes no more: a file still waits for the result.

    Attributes:
        lost: Why stdout took no more, to be raised at the end.
    """

    def __init__(
        self,
        screen: Screen,
        on_prepared: Callable[[AskResult], None] | None = None,
        stream: bool = False,
        outlives_stdout: bool = False,
    ) -> None:
        self._screen = screen
        self._on_prepared = on_prepared
        self._stream = stream
        self._outlives_stdout = outlives_stdout
        self.lost: OSError | None = None
        self._block: Progress | None = None
        self._task: TaskID | None = None
        self._line_is_open = False

    def __enter__(self) -> Listener:
        if self._screen.progress:
            self._block = _progress_block(self._screen.stderr)
            self._block.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_block()
        if self._line_is_open:
            print(flush=kind is None)

    def stage(self, name: str, total: int | None = None) -> None:
        if self._block:
            self._finish_task()
            self._task = self._block.add_task(STAGE_LABELS.get(name, name), total=total)

    def advance(self, steps: int = 1) -> None:
        if self._block and self._task is not None:
            self._block.advance(self._task, steps)

    def notice(self, text: str) -> None:
        self._screen.notice(text)

    def prepared(self, result: AskResult) -> None:
        if self._on_prepared:
            self._end_block()
            self._on_prepared(result)

    def token(self, text: str) -> None:
        if not self._stream or self.lost:
            return
        self._end_block()
        self._line_is_open = True
        try:
            print(printable(text) if sys.stdout.isatty() else text, end="", flush=True)
        except OSError as error:
            if not self._outlives_stdout:
                raise
            self._line_is_open, self.lost = False, error

    def _finish_task(self) -> None:
        if self._block and self._task is not None:
            done = self._block.tasks[self._task].total or 1
            self._block.update(self._task, total=done, completed=done)

    def _end_block(self) -> None:
        if self._block:
            self._block.stop()
            self._block = None


def _progress_block(console: Console) -> Progress:
    """One line a stage, erased when it stops."""
    from rich import progress

    from wq_cli.report.format import size

    class Count(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Any:
            from rich.text import Text

            if not task.total or task.finished:
                return Text("")
            shown = size if task.description == STAGE_LABELS["download"] else str
            return Text(f"{shown(int(task.completed))}/{shown(int(task.total))}", style="dim")

    plain = console.options.ascii_only
    return progress.Progress(
        progress.SpinnerColumn("line" if plain else "dots", finished_text="+" if plain else "✓"),
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=24, complete_style="cyan", pulse_style="cyan"),
        Count(),
        progress.TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,  # or Rich would send it to this console's stream
    )
