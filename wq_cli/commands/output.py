"""What a command shows where: the options of the Output panel and the JSON document."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wq_cli.console import Screen
from wq_cli.errors import WqError


@dataclass(frozen=True)
class Output:
    """What is shown where. `file` receives the JSON document whether or not it is also printed."""

    json: bool
    file: Path | None
    quiet: bool
    verbose: bool
    progress: bool

    def screen(self) -> Screen:
        return Screen(quiet=self.quiet, progress=self.progress)

    def check(self, *more: Path | None, picture: Path | None = None, video: str | None = None) -> None:
        """Refuse before the work what would fail after it.

        Args:
            more: Other files that will be written.
            picture: One that will be a PNG, whatever it is called.
            video: What is read, and must not be written over.

        Raises:
            WqError: One of the files cannot be written, or a picture is called something else than a PNG.
        """
        from wq_cli.report.files import check_target

        for path in (self.file, picture, *more):
            if path:
                check_target(path)
                if video and path.exists() and os.path.exists(video) and path.samefile(video):
                    raise WqError(f"`{path}` is the video itself", "write to another file")
        if picture and picture.suffix.lower() not in ("", ".png"):
            raise WqError(f"`{picture}` cannot be drawn: pictures are PNG", f"`{picture.with_suffix('.png')}` can")

    def emit(self, result: Any) -> None:
        """The JSON document to where it was asked for, the file first: whoever reads stdout may be gone already.

        Raises:
            WqError: `file` cannot be written; what was there before is still there.
        """
        if not (self.json or self.file):
            return
        from wq_cli.report import files
        from wq_cli.report.json import document

        text = document(result)
        if self.file:
            files.write(self.file, text.encode("ascii"))
        if self.json:
            sys.stdout.write(text)
