"""NExT-QA, multiple choice (Xiao et al. 2021): `test.csv` or `val.csv`, videos of VidOR anywhere below the folder.

Columns: video, question, answer (0 to 4), qid, type, a0 to a4. A video is called by its number, as in
`NExTVideo/1164/3637809797.mp4`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wq_cli.suites.item import Item, Skipped, Video, annotation, rows_of, videos_below

FILES = ("test.csv", "val.csv", "dataset/nextqa/test.csv", "dataset/nextqa/val.csv")
CHOICES = ("a0", "a1", "a2", "a3", "a4")


def items(folder: Path) -> Iterator[Item | Skipped]:
    """Questions in the order of the file; families are the types CW, CH, TN, TC, TP, DC, DL and DO."""
    return of_csv(folder, FILES, video_column="video")


def of_csv(folder: Path, files: tuple[str, ...], video_column: str) -> Iterator[Item | Skipped]:
    """Questions of a CSV file in the columns of NExT-QA.

    Args:
        folder: Where file and videos are, or the file itself.
        files: Names that the file may have.
        video_column: Column with the number of the video.
    """
    path = annotation(folder, *files)
    videos = videos_below(path.parent if folder.is_file() else folder)
    for row in rows_of(path, (video_column, "question", "answer", "qid", "type", *CHOICES)):
        video = row[video_column]
        name = f"{video}/{row['qid']}"
        options = tuple(row[choice] for choice in CHOICES)
        if not all(options) or not row["question"] or row["answer"] not in ("0", "1", "2", "3", "4"):
            yield Skipped(name, "its row is damaged")
        elif video not in videos:
            yield Skipped(name, f"there is no video `{video}`")
        else:
            answer = options[int(row["answer"])]
            yield Item(name, video, row["type"], row["question"], options, answer, Video(videos[video]))
