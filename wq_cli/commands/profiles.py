"""`wq profiles`: which models there are, what their settings mean, which one is the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from wq_cli import profile
from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.errors import ProfileError

EXAMPLES = """\
[bold]Examples[/]
$ wq profiles list
$ wq profiles show llava-onevision-0.5b
$ wq profiles validate ./mine.yaml
$ wq profiles use llava-onevision-0.5b"""

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="Profile, or the path of a YAML file.",
        show_default=False,
        autocompletion=opt.complete_profile,
    ),
]


@dataclass(frozen=True)
class ProfileRow:
    """A known profile; `model` is None where the file is not valid."""

    name: str
    model: str | None
    description: str
    path: str
    is_packaged: bool
    is_default: bool


@dataclass(frozen=True)
class ProfileList:
    """What `wq profiles list` prints."""

    command: str
    profiles: tuple[ProfileRow, ...]


@dataclass(frozen=True)
class ProfileDetails:
    """What `wq profiles show` prints."""

    command: str
    path: str
    is_default: bool
    values: dict[str, Any]


@dataclass(frozen=True)
class ProfileValidation:
    """What `wq profiles validate` prints of a profile that is valid."""

    command: str
    path: str


@dataclass(frozen=True)
class ProfileChoice:
    """What `wq profiles use` prints."""

    command: str
    name: str
    path: str


@grouped
def list_(*, output: Output) -> None:
    """List the profiles; the default is marked."""
    output.check()
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from wq_cli.report.format import glyphs_for

    rows = tuple(_row(name) for name in profile.names())
    output.emit(ProfileList("profiles list", rows))
    if not output.json:
        screen = output.screen()
        mark = glyphs_for(screen.stdout).mark
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="bold")
        for heading in ("", "profile", "model and what it is good for"):
            table.add_column(heading)
        for row in rows:
            about = Text(f"{row.model or ''}\n{row.description}".strip())
            table.add_row(mark if row.is_default else "", row.name, about, style="bold" if row.is_default else "")
        screen.result(table)
        screen.say(f"\nyour own profiles: {profile.config_folder() / 'profiles'}")
        chosen = profile.choice_file()
        screen.say(f"the default: {chosen if chosen.exists() else 'the demo model, until `wq profiles use NAME`'}")


def _row(name: str) -> ProfileRow:
    path, is_default = profile.find(name), name == profile.default_name()
    is_packaged = path.parent == profile.packaged_folder()
    try:
        found = profile.load(name)
    except ProfileError:
        return ProfileRow(
            name, None, f"not valid, see `wq profiles validate {name}`", str(path), is_packaged, is_default
        )
    return ProfileRow(name, found.model, found.description, str(path), is_packaged, is_default)


@grouped
def show(name: Name, *, output: Output) -> None:
    """Show a profile and what each of its settings means."""
    output.check()
    from rich.table import Table
    from rich.text import Text

    found = profile.load(name)
    explained = profile.explain(found)
    values = {key: value for key, value, _ in explained}
    output.emit(ProfileDetails("profiles show", str(found.path), name == profile.default_name(), values))
    if not output.json:
        screen = output.screen()
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(ratio=3, overflow="fold")
        grid.add_column(style="dim", ratio=2)
        for key, value, meaning in explained:
            grid.add_row(key, Text(_as_text(value)), meaning)
        screen.result(grid)
        screen.say(f"\n{found.path}")


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for part in value.values() for key, item in part.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value).strip()


@grouped
def validate(name: Name, *, output: Output) -> None:
    """Check a profile: unknown keys, types, ranges."""
    output.check()
    path = profile.load(name).path
    output.emit(ProfileValidation("profiles validate", str(path)))
    if not output.json:
        output.screen().result(f"{path} is valid")


@grouped
def use(name: Name, *, output: Output) -> None:
    """Make a profile the default of every command."""
    output.check()
    path = profile.use(name)
    if not output.json:
        output.screen().say(f"`{name}` is the default now, kept in {path}")
    output.emit(ProfileChoice("profiles use", name, str(path)))
