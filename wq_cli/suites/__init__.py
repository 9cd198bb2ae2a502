"""Suites of questions by name: the demo world's own, and public ones read from a folder as they are handed out.

A suite is one file of this folder with a function `items(folder)` and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from wq_cli.config import AnswerMode
from wq_cli.errors import UsageError, WqError, unknown_name

if TYPE_CHECKING:
    from pathlib import Path

    from wq_cli.suites.item import Item, Skipped

SCENES = "scenes"
# name on the command line: module of this package
_FOLDERS = {name: name for name in ("nextqa", "egoschema", "intentqa", "mvbench", "milebench")}
NAMES = (SCENES, *_FOLDERS)


@dataclass(frozen=True)
class Questions:
    """What is asked.

    Attributes:
        suite: One of `NAMES`.
        folder: Where a public suite lies, or its file of questions; the demo world needs none.
        count: How many; None for all of them, or the demo world's usual number.
        mode: How an option is chosen.
    """

    suite: str = SCENES
    folder: Path | None = None
    count: int | None = None
    mode: AnswerMode = "likelihood"


def load(asked: Questions, seed: int) -> tuple[list[Item], list[Skipped]]:
    """Questions of a suite, those about one clip one after the other.

    Args:
        asked: Which of them.
        seed: Which clips of the demo world, or which questions of a public suite.

    Returns:
        The questions, and those that cannot be asked, with the reason.

    Raises:
        UsageError: No such suite, or its folder is not given.
        WqError: The folder is not in the suite's format, or nothing of it can be asked.
    """
    name, folder = asked.suite, asked.folder
    if name not in NAMES:
        raise unknown_name("suite", name, NAMES)
    if name == SCENES:
        if folder is not None:
            raise UsageError("`scenes` is made, not read", "leave `--folder` away")
        from wq_cli.suites import scenes

        return list(scenes.items(asked.count or scenes.DEFAULT_QUESTIONS, seed)), []
    if folder is None:
        raise UsageError(f"`{name}` is read from a folder", "name it: `--folder PATH`")
    if not folder.exists():
        raise WqError(f"there is no folder `{folder}`")
    from wq_cli.suites.item import drawn, split

    items, skipped = split(import_module(f"wq_cli.suites.{_FOLDERS[name]}").items(folder))
    if not items:
        why = f": {skipped[0].reason}" if skipped else ""
        raise WqError(f"no question of `{name}` in `{folder}` can be asked{why}")
    return drawn(items, asked.count, seed), skipped
