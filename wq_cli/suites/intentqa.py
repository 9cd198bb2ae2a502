"""IntentQA (Li et al. 2023): `test.csv` or `val.csv` with the columns of NExT-QA, on its videos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wq_cli.suites.item import Item, Skipped
from wq_cli.suites.nextqa import of_csv

FILES = ("test.csv", "val.csv", "datasets/IntentQA/test.csv", "datasets/IntentQA/val.csv")


def items(folder: Path) -> Iterator[Item | Skipped]:
    """Questions in the order of the file; families are the types CW, CH, TN and TP."""
    return of_csv(folder, FILES, video_column="video_id")
