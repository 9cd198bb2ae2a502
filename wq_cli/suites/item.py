"""A question of a suite, what it is about, and what the readers of the formats share."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

from wq_cli.config import Limits, Sampling
from wq_cli.errors import VideoError, WqError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VIDEO_SUFFIXES = (".mp4", ".mkv", ".webm", ".avi", ".mov")


@dataclass(frozen=True)
class Pictures:
    """RGB frames, uint8 [F, H, W, 3], and the time of each in seconds, [F]."""

    frames: NDArray[np.uint8]
    pts_seconds: NDArray[np.float64]


class Footage(Protocol):
    """What a question is about."""

    def read(self, frames: int, max_side: int | None, limits: Limits) -> Pictures:
        """Evenly spread frames, `frames` of them where there is a choice.

        Raises:
            VideoError: It cannot be decoded.
        """


@dataclass(frozen=True)
class Item:
    """One multiple-choice question about one clip.

    Attributes:
        id: Unique within the suite.
        clip: What questions share when they are about the same footage.
        family: Kind of question in the suite's own words.
        options: Candidate answers; `answer` is one of them.
        is_open: Whether it is a question of its own, so that options can be weighed without being read out first.
    """

    id: str
    clip: str
    family: str
    question: str
    options: tuple[str, ...]
    answer: str
    footage: Footage
    is_open: bool = False


@dataclass(frozen=True)
class Skipped:
    """A question that cannot be asked, and why."""

    id: str
    reason: str


@dataclass(frozen=True)
class Video:
    """A video file, or the stretch of it between two times."""

    path: Path
    start_seconds: float | None = None
    end_seconds: float | None = None

    def read(self, frames: int, max_side: int | None, limits: Limits) -> Pictures:
        return _read(
            self.path, Sampling(frames=frames, start=self.start_seconds, end=self.end_seconds), max_side, limits
        )


@dataclass(frozen=True)
class FrameFolder:
    """A folder of a video's frames, taken at a known rate, or the stretch of it between two times."""

    path: Path
    fps: float
    start_seconds: float | None = None
    end_seconds: float | None = None

    def read(self, frames: int, max_side: int | None, limits: Limits) -> Pictures:
        # A folder is read as one picture a second.
        start, end = (None if t is None else t * self.fps for t in (self.start_seconds, self.end_seconds))
        made = _read(self.path, Sampling(frames=frames, start=start, end=end), max_side, limits)
        return replace(made, pts_seconds=made.pts_seconds / self.fps)


@dataclass(frozen=True)
class Images:
    """Single pictures in order, all of them read, a second apart; they are stretched to the size of the first."""

    paths: tuple[Path, ...]

    def read(self, frames: int, max_side: int | None, limits: Limits) -> Pictures:
        with TemporaryDirectory(prefix="wq-images-") as folder:
            for number, path in enumerate(self.paths):
                shutil.copyfile(path, Path(folder) / f"{number}{path.suffix}")
            made = _read(Path(folder), Sampling(fps=1.0), max_side, limits)
        if len(made.frames) < len(self.paths):  # the text counts them
            missing = len(self.paths) - len(made.frames)
            raise VideoError(f"{missing} of {len(self.paths)} pictures beside `{self.paths[0]}` cannot be decoded")
        return made


def _read(path: Path, sampling: Sampling, max_side: int | None, limits: Limits) -> Pictures:
    from wq_cli import video

    clip = video.read(path, sampling, default_frames=1, max_side=max_side, limits=limits)
    return Pictures(clip.frames, clip.pts_seconds)


def split(found: Iterable[Item | Skipped]) -> tuple[list[Item], list[Skipped]]:
    """Questions, those about one clip brought together in the order of the first of them, and those left out.

    Of questions that share an id, the second is called `ID (2)`, and so on.
    """
    by_clip: dict[str, list[Item]] = {}
    skipped = []
    seen: Counter[str] = Counter()
    for item in found:
        seen[item.id] += 1
        if seen[item.id] > 1:
            item = replace(item, id=f"{item.id} ({seen[item.id]})")
        if isinstance(item, Skipped):
            skipped.append(item)
        elif not _is_unicode(item.question, *item.options):
            skipped.append(Skipped(item.id, "its text is damaged"))
        else:
            by_clip.setdefault(item.clip, []).append(item)
    return [item for items in by_clip.values() for item in items], skipped


def _is_unicode(*texts: str) -> bool:
    """Whether no text holds half a surrogate pair, which JSON may and no tokenizer takes."""
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True


def drawn(items: list[Item], questions: int | None, seed: int) -> list[Item]:
    """Some of the questions, chosen by chance, in their order."""
    if questions is None or questions >= len(items):
        return items
    chosen = random.Random(seed).sample(range(len(items)), questions)
    return [items[place] for place in sorted(chosen)]


def annotation(folder: Path, *names: str) -> Path:
    """The file of a suite's questions: the first of `names` that is in `folder`, or `folder` where that is the file.

    Raises:
        WqError: There is none.
    """
    if folder.is_file():
        return folder
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise WqError(f"`{folder}` holds no `{names[0]}`", f"looked for: {', '.join(names)}")


def rows_of(path: Path, columns: Sequence[str]) -> Iterator[dict[str, str]]:
    """Rows of a CSV file by column.

    Raises:
        WqError: It cannot be read or lacks a column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise WqError(f"`{path}` has no column `{missing[0]}`", f"columns needed: {', '.join(columns)}")
            yield from reader
    except (OSError, UnicodeError, csv.Error) as error:
        raise WqError(f"`{path}` cannot be read: {error}") from error


def json_of(path: Path, kind: type) -> Any:
    """What a JSON file holds, a `list` or a `dict`.

    Raises:
        WqError: It cannot be read or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise WqError(f"`{path}` cannot be read: {error}") from error
    if not isinstance(found, kind):
        raise WqError(f"`{path}` holds no {'list' if kind is list else 'object'}")
    return found


def videos_below(folder: Path) -> dict[str, Path]:
    """Video files below a folder by their name without its ending."""
    found: dict[str, Path] = {}
    for parent, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(parent, name)
            if path.suffix.lower() in VIDEO_SUFFIXES:
                found.setdefault(path.stem, path)
    return found
