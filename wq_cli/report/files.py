"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wq_cli.errors import WqError, system_reason


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before the work is done.

    Raises:
        WqError: Its folder is missing or not writable, or the path is a folder.
    """
    with _readable(path):
        folder = path.resolve().parent
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        if not folder.is_dir():
            raise FileNotFoundError(None, f"there is no folder `{folder}`")
        if not os.access(path if path.exists() else folder, os.W_OK):
            raise PermissionError(None, "permission denied")


def write(path: Path, data: bytes) -> None:
    """Write a file under another name, then rename it. Devices and pipes are written directly.

    Raises:
        WqError: The file cannot be written; what was there before is still there.
    """
    with _readable(path):
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            with _replaced(path.resolve()) as part:
                part.write_bytes(data)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """The system's errors in the words of ours."""
    try:
        yield
    except OSError as error:
        raise WqError(f"cannot write `{path}`: {system_reason(error)}") from error


@contextmanager
def _replaced(path: Path) -> Iterator[Path]:
    part = path.with_name(f".{path.name[:100]}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
