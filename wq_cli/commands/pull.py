"""`wq pull`: a real model from the hub to this computer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from wq_cli import profile
from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.commands.output import Output
from wq_cli.console import Listener
from wq_cli.errors import UsageError

EXAMPLES = """\
[bold]Examples[/]
$ wq pull llava-onevision-0.5b
$ wq pull qwen2.5-vl-7b --pin
$ wq pull llava-hf/llava-onevision-qwen2-7b-ov-hf --revision main"""

Source = Annotated[
    str,
    typer.Argument(
        metavar="PROFILE|REPO",
        help="Profile, or a repository of the hub such as `owner/name`.",
        show_default=False,
        autocompletion=opt.complete_profile,
    ),
]
Revision = Annotated[
    str | None,
    opt.option("--revision", panel=opt.MODEL, help="Commit, tag or branch of the repository.", metavar="REV"),
]
Pin = Annotated[
    bool,
    opt.option("--pin", panel=opt.MODEL, help="Write the commit into the profile: it takes no other from then on."),
]


@dataclass(frozen=True)
class PullResult:
    """What `wq pull` prints.

    Attributes:
        profile: The profile that named the repository, if one did.
        revision: Commit that was fetched.
        path: Folder that holds the model.
        size_bytes: Of its files.
    """

    command: str
    profile: str | None
    repository: str
    revision: str
    path: str
    size_bytes: int


@grouped
def pull(source: Source, *, revision: Revision = None, pin: Pin = False, output: Output) -> None:
    """Download a model: safetensors weights, config and processor. What is here already is not fetched again."""
    output.check()
    repository, pinned, named = _repository(source)
    if pin and named is None:
        raise UsageError("`--pin` writes into a profile", f"name one in place of `{source}`")
    if pinned and revision and not pin:
        raise UsageError(
            f"profile `{named}` pins revision `{pinned}`", "leave `--revision` away, or move the pin with `--pin`"
        )
    if pin:
        profile.own_file(profile.load(named))  # before a long download, not after it

    from wq_cli.models import hub
    from wq_cli.report.format import size

    screen = output.screen()
    with Listener(screen) as listener:
        folder = hub.pull(repository, revision or pinned, listener)
    if pin:
        profile.remember(profile.load(named), "revision", folder.name)
    total = sum(file.stat().st_size for file in folder.iterdir())
    if not output.json:
        screen.result(str(folder))
        choice = f"--profile {named}" if named else f"--model {repository}"
        screen.say(f'\n{size(total)}, ready: wq ask VIDEO "what happens?" {choice}')
    output.emit(PullResult("pull", named, repository, folder.name, str(folder), total))


def _repository(source: str) -> tuple[str, str | None, str | None]:
    """(repository, pinned revision, profile) of a profile's or a repository's name.

    Raises:
        WqError: No such profile, or one whose model is not on the hub.
    """
    from wq_cli.models import hub

    if hub.is_repository(source) and not source.endswith((".yaml", ".yml")):
        return source, None, None
    found = profile.load(source)
    if not hub.is_repository(found.model):
        where = "inside this package" if found.model == profile.FALLBACK else f"in `{found.model}`"
        raise UsageError(f"the model of profile `{source}` is {where}: there is nothing to pull")
    return found.model, found.revision, source
