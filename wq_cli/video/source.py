"""From the name a person typed to an open file: no name is ever read as a pattern, a protocol or a device."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from wq_cli.errors import VideoError

_WEB_ADDRESS = re.compile(r"https?://", re.IGNORECASE)


def printable(path: str) -> str:
    """The path with everything that could break a terminal or a strict encoder written as an escape."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


@contextmanager
def open_source(path: str) -> Iterator[BinaryIO]:
    """Opens a file for reading; standard input (`-`) and pipes are copied to a private temporary file first.

    Raises:
        VideoError: The name is a web address, missing, not readable or empty.
    """
    name = printable(path)
    if _WEB_ADDRESS.match(path):
        raise VideoError(f"`{name}` is a web address, which wq does not read", "download the file and give its path")
    if path == "-":
        with _spooled(sys.stdin.buffer) as file:
            yield file
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below, outside this clause)
    except FileNotFoundError:
        raise VideoError(f"there is no file `{name}`", "check the spelling and the current folder") from None
    except PermissionError:
        raise VideoError(f"no permission to read `{name}`") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise VideoError(f"`{name}` cannot be opened: {reason}") from None
    with file:
        mode = os.fstat(file.fileno())
        if not stat.S_ISREG(mode.st_mode):
            with _spooled(file) as copy:
                yield copy
        elif mode.st_size == 0:
            raise VideoError(f"`{name}` is empty")
        else:
            yield file


@contextmanager
def _spooled(stream: BinaryIO) -> Iterator[BinaryIO]:
    """A seekable copy of a stream, in a file that has no name and vanishes when closed."""
    with tempfile.TemporaryFile(prefix="wq-") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
        if file.tell() == 0:
            raise VideoError("standard input is empty")
        yield file
