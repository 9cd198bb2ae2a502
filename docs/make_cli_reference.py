"""Write docs/reference/cli.md from the commands themselves: `python docs/make_cli_reference.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from wq_cli.app import app

TARGET = Path(__file__).parent / "reference" / "cli.md"
_HEAD = """\
# Command line

Made by `python docs/make_cli_reference.py` from what `--help` shows; a test fails when it is stale.

The answer, map or table goes to stdout, everything else to stderr. With `--json` stdout carries exactly one JSON
document, also when a command fails (`"kind": "error"`, with `error`, `hint` and `exit_code`).

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | a failure you can fix: file, model, device, profile |
| 2 | the command line is wrong |
| 3 | a bug of wq |
| 130 | interrupted |

| variable | meaning |
|---|---|
| `WQ_CONFIG_HOME` | folder of your profiles and of the default profile's name |
| `WQ_NO_PROGRESS` | no progress display |
| `NO_COLOR` | no colour |
| `OMP_WAIT_POLICY` | how PyTorch's threads wait; wq sets `passive` unless you set it |

Shell completion: `wq --install-completion`.
"""


def reference() -> str:
    """The page as Markdown."""
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="wq", **root.context_settings)
    return "\n".join([_HEAD, *_command(root, context)])


def _command(command: Any, context: Any) -> Iterator[str]:
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        below = typer.Context(child, info_name=name, parent=context)
        is_group = hasattr(child, "list_commands")
        if is_group and not child.invoke_without_command:
            yield from _command(child, below)
            continue
        yield f"## {below.command_path}\n"
        yield f"{child.help}\n"
        yield f"```\n{' '.join(child.get_usage(below).split()).removeprefix('Usage: ')}\n```\n"
        yield from _parameters(child.get_params(below))
        if child.epilog:
            yield "```sh\n" + "\n".join(line.removeprefix("$ ") for line in child.epilog.splitlines()[1:]) + "\n```\n"
        if is_group:
            yield from _command(child, below)


def _parameters(params: list[Any]) -> Iterator[str]:
    panels: dict[str, list[Any]] = {}
    for param in params:
        is_argument = param.param_type_name == "argument"
        panels.setdefault("Arguments" if is_argument else param.rich_help_panel, []).append(param)
    for panel, members in panels.items():
        yield f"| {panel} | | default |\n|---|---|---|"
        for param in members:
            given = [*sorted(param.opts, key=len, reverse=True), *param.secondary_opts]
            names = ", ".join(f"`{name}`" for name in given)
            if param.param_type_name == "argument":
                names = f"`{param.metavar}`"
            elif param.metavar:
                names += f" {param.metavar.replace('|', '/')}"
            shown = param.default is not None and not getattr(param, "is_flag", False)
            default = "required" if param.required else f"`{param.default}`" if shown else ""
            yield f"| {names} | {param.help} | {default} |"
        yield ""


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
