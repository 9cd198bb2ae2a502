"""From the name a person typed to an open file: no name is ever read as a pattern, a protocol or an option."""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import BinaryIO

from wq_cli.errors import VideoError
from wq_cli.video.clip import Limits

_WEB_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_CHUNK_BYTES = 1 << 20


def printable(path: str) -> str:
    """The path with everything that could break a terminal or a strict encoder written as an escape."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


@contextmanager
def open_source(path: str, limits: Limits) -> Iterator[BinaryIO]:
    """Opens a file for reading; standard input (`-`) and pipes are copied to a private temporary file first.

    Raises:
        VideoError: The name is a web address, or the file is missing, not readable or empty.
    """
    name = printable(path)
    if path == "-":
        yield _copy_of_standard_input(limits.max_piped_bytes)
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 (closed below, where its reader's errors are not taken for its own)
    except FileNotFoundError:
        if _WEB_ADDRESS.match(path):
            raise VideoError(
                f"`{name}` is a web address, which wq does not read", "download the file and give its path"
            ) from None
        raise VideoError(f"there is no file `{name}`", "check the spelling and the current folder") from None
    except PermissionError:
        raise VideoError(f"no permission to read `{name}`") from None
    except (OSError, ValueError) as error:
        raise VideoError(f"`{name}` cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            with _copied(file, name, limits.max_piped_bytes) as copy:
                yield copy
        elif status.st_size == 0:
            raise VideoError(f"`{name}` is empty")
        else:
            yield file


@lru_cache(maxsize=1)
def _copy_of_standard_input(max_bytes: int) -> BinaryIO:
    """Kept until the process ends: standard input can be read once, a video may be opened more often."""
    return _copied(sys.stdin.buffer, "standard input", max_bytes)


def _copied(stream: BinaryIO, name: str, max_bytes: int) -> BinaryIO:
    """A seekable copy of a stream, in a file that has no name and vanishes when closed."""
    copy = tempfile.TemporaryFile(prefix="wq-")  # noqa: SIM115 (the caller closes it)
    try:
        while chunk := stream.read(_CHUNK_BYTES):
            if copy.tell() + len(chunk) > max_bytes:
                raise VideoError(
                    f"`{name}` goes on after {max_bytes:,} bytes", "lift the limit with `--max-piped-bytes`"
                )
            copy.write(chunk)
        if copy.tell() == 0:
            raise VideoError(f"`{name}` is empty")
    except OSError as error:
        copy.close()
        raise VideoError(f"`{name}` cannot be read: {error.strerror}") from None
    except BaseException:
        copy.close()
        raise
    return copy
