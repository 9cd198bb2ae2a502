"""The record of an evaluation: a JSON line on how it was made, then one a question; a cut run goes on from it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wq_cli.bench.scoring import Scored
from wq_cli.errors import WqError, system_reason
from wq_cli.report import files

# May differ between the runs that fill one record.
_FREE = ("date",)


class Record:
    """Questions that are scored, in memory and, where a path is given, in a file that grows line by line.

    Args:
        path: The file; None keeps nothing.
        made_with: Everything besides the question that a score depends on. A file that is there must say the same.

    Attributes:
        scored: By the id of the question.

    Raises:
        WqError: The file is of another run, or cannot be read or written.
    """

    def __init__(self, path: Path | None, made_with: dict[str, Any]) -> None:
        self.scored: dict[str, Scored] = {}
        self._path = path
        header = json.loads(json.dumps(made_with))  # as it comes back from a file
        if path is None:
            return
        try:
            lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
            if lines:
                whole = [line for line in lines if line.endswith(b"\n")]
                self._take_up(path, whole, header)
                if whole != lines:  # a run was cut in the middle of its last line
                    os.truncate(path, sum(map(len, whole)))
            else:
                files.write(path, f"{json.dumps(header)}\n".encode())
        except OSError as error:
            raise WqError(f"cannot write `{path}`: {system_reason(error)}") from error

    @property
    def labels(self) -> tuple[str, ...]:
        """Variants that answered; none before the first question."""
        return tuple(next(iter(self.scored.values())).answers) if self.scored else ()

    def _take_up(self, path: Path, lines: list[bytes], header: dict[str, Any]) -> None:
        try:
            before = json.loads(lines[0])
            different = [key for key in (*header, *before) if key not in _FREE and header.get(key) != before.get(key)]
            if not different:
                found = [Scored.of_json(json.loads(line)) for line in lines[1:]]
                self.scored = {question.id: question for question in found}
                if any(tuple(question.answers) != self.labels for question in found):
                    raise ValueError("questions with different variants")
                reference, *others = header["variants"]
                if found and not {reference} <= set(self.labels) <= {reference, *others}:
                    raise ValueError("no answer of the reference, or one of a variant that this run has not")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise WqError(f"`{path}` is no record of `wq eval`", "give another file") from None
        if different:
            raise WqError(
                f"`{path}` is the record of another run: its `{different[0]}` is not this run's",
                "give another file, or the options that it was made with",
            )

    def add(self, scored: Scored) -> None:
        """Keep one question.

        Raises:
            WqError: The file cannot be written.
        """
        self.scored[scored.id] = scored
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(scored)) + "\n")
        except OSError as error:
            raise WqError(f"cannot write `{self._path}`: {system_reason(error)}") from error
