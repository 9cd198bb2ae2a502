"""The Typer app: commands wired together, errors turned into one line and an exit code."""

from __future__ import annotations

import errno
import re
import sys
import traceback
from typing import Annotated

import typer

from wq_cli import console
from wq_cli.commands import (
    ablation,
    ask,
    bench,
    calibrate,
    doctor,
    eval,
    inspect,
    kernel_times,
    paper,
    profiles,
    pull,
    scaling,
    scenes,
)
from wq_cli.commands.groups import Command, Group, RunnableGroup
from wq_cli.errors import WqError, system_reason

EXIT_BUG = 3
EXIT_INTERRUPTED = 130
_EXAMPLES = """\
[bold]Examples[/]
$ wq scenes make clip.mp4
$ wq ask clip.mp4 "what happens?"
$ wq inspect clip.mp4 --prompt "a dog" --prompt "a red circle" --png map.png
$ wq bench --frames 100 --policies fp16,windowquant,rtn4,rtn2"""

app = typer.Typer(
    name="wq",
    cls=Group,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("ask", cls=Command, epilog=ask.EXAMPLES)(ask.ask)
app.command("inspect", cls=Command, epilog=inspect.EXAMPLES)(inspect.inspect)
app.command("eval", cls=Command, epilog=eval.EXAMPLES)(eval.evaluate)
app.command("calibrate", cls=Command, epilog=calibrate.EXAMPLES)(calibrate.calibrate)
app.command("pull", cls=Command, epilog=pull.EXAMPLES)(pull.pull)
app.command("doctor", cls=Command, epilog=doctor.EXAMPLES)(doctor.doctor)

_bench = typer.Typer(cls=RunnableGroup, epilog=bench.EXAMPLES)
_bench.callback(invoke_without_command=True, epilog=bench.EXAMPLES)(bench.bench)
_bench.command("ablation", cls=Command, epilog=ablation.EXAMPLES)(ablation.ablation)
_bench.command("kernels", cls=Command, epilog=kernel_times.EXAMPLES)(kernel_times.kernels)
_bench.command("scaling", cls=Command, epilog=scaling.EXAMPLES)(scaling.scaling)
_bench.command("paper", cls=Command, epilog=paper.EXAMPLES)(paper.paper)
app.add_typer(_bench, name="bench")

_profiles = typer.Typer(cls=Group, help="List, show, check and choose model profiles.", epilog=profiles.EXAMPLES)
_profiles.command("list", cls=Command)(profiles.list_)
_profiles.command("show", cls=Command)(profiles.show)
_profiles.command("validate", cls=Command)(profiles.validate)
_profiles.command("use", cls=Command)(profiles.use)
app.add_typer(_profiles, name="profiles")

_scenes = typer.Typer(cls=Group, help="Render clips of the world that the demo model knows.", epilog=scenes.EXAMPLES)
_scenes.command("make", cls=Command, epilog=scenes.EXAMPLES)(scenes.make)
app.add_typer(_scenes, name="scenes")
_GROUPS = {"bench": _bench, "profiles": _profiles, "scenes": _scenes}


def _print_version(wanted: bool) -> None:
    if wanted:
        from wq_cli import __version__

        typer.echo(f"wq {__version__}")
        raise typer.Exit


@app.callback(epilog=_EXAMPLES)
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Ask questions about videos. The visual KV cache is quantized window by window, by relevance to the question."""


def main(arguments: list[str] | None = None) -> int:
    """Run `wq`.

    Args:
        arguments: Command line without the program's name; that of the process when None.

    Returns:
        Exit code: 0 done, 1 a failure the user can fix, 2 usage, 3 a bug of wq, 130 interrupted.
    """
    console.prepare_streams()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of a pipe went away: end quietly, with Typer's own code for it
        console.abandon(sys.stdout)
    except OSError as error:
        console.show_error(f"cannot write to stdout: {system_reason(error)}", None)
        console.abandon(sys.stdout)
    return 1


def _run(arguments: list[str]) -> int:
    try:
        code = app(arguments or ["--help"], prog_name="wq", standalone_mode=False) or 0
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except OSError as error:
        if error.errno in (errno.EPIPE, errno.ENOSPC):
            raise
        return _bug(arguments, error)
    except WqError as error:
        return _fail(arguments, error.message, error.hint, error.exit_code)
    except typer.TyperException as error:
        return _fail(arguments, *_usage_error(error), error.exit_code)
    except Exception as error:
        return _bug(arguments, error)
    if code == EXIT_INTERRUPTED:
        return _fail(arguments, "interrupted", None, code)
    return int(code)


def _bug(arguments: list[str], error: Exception) -> int:
    if {"-v", "--verbose"} & set(_options(arguments)):
        traceback.print_exc()
    what = " ".join(f"unexpected {type(error).__name__}: {error}".split())
    return _fail(arguments, what, "run again with `--verbose` for the traceback, and report it", EXIT_BUG)


def _options(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _command(arguments: list[str]) -> str:
    """`ask`, or `profiles show`, as far as the line goes."""
    words = [argument for argument in _options(arguments) if not argument.startswith("-")]
    group = _GROUPS.get(words[0]) if words else None
    is_below = group is not None and any(command.name in words[1:2] for command in group.registered_commands)
    return " ".join(words[: 2 if is_below else 1])


def _fail(arguments: list[str], message: str, hint: str | None, code: int) -> int:
    """Say what went wrong on stderr, and on stdout too where a program reads it."""
    console.show_error(message, hint)
    if "--json" in _options(arguments):
        from wq_cli.report.json import document
        from wq_cli.results import Failure

        failure = Failure(command=_command(arguments), error=message, hint=hint, exit_code=code)
        sys.stdout.write(document(failure))
    return code


def _usage_error(error: typer.TyperException) -> tuple[str, str]:
    """Typer's message in the words of our own errors, and where to look."""
    message = error.format_message().replace("Value error, ", "").removesuffix(".")
    message = re.sub(r"(?<!\w)'([^'\n]+)'(?!\w)", r"`\1`", message)
    if re.match("No such option: -[^-]", message):
        hint = "put `./` before a file name that starts with `-`, or `--` before the arguments"
    else:
        context = getattr(error, "ctx", None)
        hint = f"see `{context.command_path if context else 'wq'} --help`"
    return message[:1].lower() + message[1:], hint
