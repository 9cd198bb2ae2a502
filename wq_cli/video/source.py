"""From the name a person typed to an open file: no name is ever read as a pattern, a protocol or an option."""

from __future__ import annotations

import http.client
import os
import re
import stat
import string
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, BinaryIO

from wq_cli.config import Limits
from wq_cli.errors import VideoError, first_line

_WEB_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
_CHUNK_BYTES = 1 << 20


def printable(path: str) -> str:
    """The path with everything that could break a terminal or a strict encoder written as an escape."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def is_web_address(path: str) -> bool:
    """Whether a video is fetched over the network."""
    return _WEB_ADDRESS.match(path) is not None


def open_source(path: str, limits: Limits) -> AbstractContextManager[BinaryIO]:
    """Opens a file for reading; what cannot be read twice is copied to a private temporary file first.

    Raises:
        VideoError: The file is missing, not readable or empty, or the web server does not give it.
    """
    name = printable(path)
    try:
        if is_web_address(path):
            return nullcontext(_copy_of_web_file(path, limits.max_copied_bytes, limits.timeout_seconds))
        if path == "-" or not stat.S_ISREG(os.stat(path).st_mode):
            return nullcontext(_copy_of_pipe(path, limits.max_copied_bytes))
        file = open(path, "rb")  # noqa: SIM115 (it is the context manager that is returned)
    except FileNotFoundError:
        raise VideoError(f"there is no file `{name}`", "check the spelling and the current folder") from None
    except PermissionError:
        raise VideoError(f"no permission to read `{name}`") from None
    except (OSError, ValueError) as error:
        raise VideoError(f"`{name}` cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    if os.fstat(file.fileno()).st_size == 0:
        file.close()
        raise VideoError(f"`{name}` is empty")
    return file


# Copies are kept until the process ends: a video may be opened more often than it can, or should, be fetched.
@lru_cache(maxsize=1)
def _copy_of_pipe(path: str, max_bytes: int) -> BinaryIO:
    if path == "-":
        return _copied(sys.stdin.buffer, "standard input", max_bytes)
    with open(path, "rb") as pipe:
        return _copied(pipe, printable(path), max_bytes)


@lru_cache(maxsize=1)
def _copy_of_web_file(address: str, max_bytes: int, timeout_seconds: float) -> BinaryIO:
    name = printable(address)
    if not address.isascii():
        address = urllib.parse.quote(address, safe=string.punctuation)
    try:
        with urllib.request.build_opener(_WebRedirects).open(address, timeout=timeout_seconds) as response:
            if response.headers.get_content_type() == "text/html":
                raise VideoError(f"`{name}` is a web page", "give the address of the video file itself")
            copy = _copied(response, name, max_bytes)
            if response.length:
                raise VideoError(f"`{name}` broke off {response.length:,} bytes before its end", "try again")
            return copy
    except urllib.error.HTTPError as error:
        answer = printable(first_line(error.reason))
        raise VideoError(f"the server of `{name}` answers {error.code} {answer}".rstrip()) from None
    except urllib.error.URLError as error:
        raise VideoError(
            f"`{name}` cannot be reached: {getattr(error.reason, 'strerror', None) or error.reason}"
        ) from None
    except http.client.IncompleteRead:
        raise VideoError(f"`{name}` broke off before its end", "try again") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise VideoError(f"`{name}` cannot be fetched: {printable(first_line(error))}") from None


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to other web addresses alone; Python's own would go to FTP as well."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not _WEB_ADDRESS.match(newurl):
            raise VideoError(f"the server of `{printable(req.full_url)}` sends to `{printable(newurl)}`")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _copied(stream: BinaryIO, name: str, max_bytes: int) -> BinaryIO:
    """A seekable copy of a stream, in a file that has no name and vanishes when closed."""
    copy = tempfile.TemporaryFile(prefix="wq-")  # noqa: SIM115 (the caller closes it)
    try:
        while chunk := stream.read(_CHUNK_BYTES):
            if copy.tell() + len(chunk) > max_bytes:
                raise VideoError(
                    f"`{name}` goes on after {max_bytes:,} bytes", "lift the limit with `--max-copied-bytes`"
                )
            copy.write(chunk)
        if copy.tell() == 0:
            raise VideoError(f"`{name}` is empty")
    except BaseException:
        copy.close()
        raise
    return copy
