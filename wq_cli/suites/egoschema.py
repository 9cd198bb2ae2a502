"""EgoSchema (Mangalam et al. 2023): `questions.json`, `subset_answers.json`, videos called by their `q_uid`.

Only the 500 questions of the subset have public answers; the others are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wq_cli.suites.item import Item, Skipped, Video, annotation, json_of, videos_below

OPTIONS = tuple(f"option {number}" for number in range(5))
FAMILY = "subset"


def items(folder: Path) -> Iterator[Item | Skipped]:
    """Questions with an answer, in the order of `questions.json`."""
    path = annotation(folder, "questions.json")
    answers = json_of(annotation(path.parent, "subset_answers.json"), dict)
    videos = videos_below(path.parent)
    for entry in json_of(path, list):
        if not isinstance(entry, dict) or (name := str(entry.get("q_uid"))) not in answers:
            continue
        options = tuple(str(entry.get(option, "")) for option in OPTIONS)
        question, right = entry.get("question"), answers[name]
        if not question or not all(options) or not isinstance(right, int) or right not in range(5):
            yield Skipped(name, "its entry is damaged")
        elif name not in videos:
            yield Skipped(name, f"there is no video `{name}`")
        else:
            yield Item(name, name, FAMILY, question, options, options[right], Video(videos[name]))
