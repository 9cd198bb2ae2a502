"""MileBench (Song et al. 2024): `TASK/TASK.json` with `meta_data` and `data`, pictures in `TASK/images/`.

Pictures stand between the words of its prompts. Here they come first and the text points at them as `<Image 3>`, as in
its own runs on combined images: a cache of visual tokens is sealed before the question is read. Tasks that ask for free
text have no options to choose from and are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wq_cli.errors import WqError
from wq_cli.suites.item import Images, Item, Skipped, json_of

_PLACE = re.compile(r"\{(?:image|table)#(\d+)\}")


def items(folder: Path) -> Iterator[Item | Skipped]:
    """Multiple-choice questions, task after task; the task is the family.

    Raises:
        WqError: No task is there, or a file is damaged as a whole.
    """
    inside = folder.iterdir() if folder.is_dir() else ()
    tasks = sorted(path for path in inside if (path / f"{path.name}.json").is_file())
    if not tasks:
        raise WqError(f"`{folder}` holds no task of MileBench", "a task is a folder `TASK` with `TASK.json` in it")
    for task in tasks:
        path = task / f"{task.name}.json"
        held = json_of(path, dict)
        try:
            instructions, entries = held["meta_data"]["task_instruction"], list(held["data"])
        except (KeyError, TypeError):
            raise WqError(f"`{path}` has no `meta_data` with `task_instruction`, or no `data`") from None
        for number, entry in enumerate(entries):
            yield _item(task, number, entry, instructions)


def _item(task: Path, number: int, entry: Any, instructions: Any) -> Item | Skipped:
    name = f"{task.name}/{number}"
    try:
        instance = entry["task_instance"]
        if "choice_list" not in instance:
            return Skipped(name, "it has no options to choose from")
        instruction = instructions[entry["task_instruction_id"]]
        text = _PLACE.sub(r"<Image \1>", f"{instruction}\n{instance['context']}")
        options = tuple(str(choice) for choice in instance["choice_list"])
        right = options.index(str(entry["response"]))
        pictures = [str(path) for path in instance["images_path"]]
    except (KeyError, TypeError, ValueError, IndexError):
        return Skipped(name, "its entry is damaged")
    paths = tuple(task / "images" / picture for picture in pictures)
    missing = next((path for path in paths if not path.is_file()), None)
    if missing or not paths:
        return Skipped(name, f"there is no picture `{missing}`" if missing else "it has no pictures")
    clip = f"{task.name}/{' '.join(pictures)}"
    return Item(name, clip, task.name, text, options, options[right], Images(paths))
