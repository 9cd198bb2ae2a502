"""Errors a person can act on: one sentence, an optional hint, a fixed exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class WqError(Exception):
    """A failure the user can fix (file, model, device, profile): exit code 1.

    Args:
        message: One sentence without a full stop, literals in backticks.
        hint: What to try next, printed on its own line.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(WqError):
    """Options that do not go together or lie outside their range: exit code 2, as Typer's own."""

    exit_code = 2


class VideoError(WqError):
    """The input file holds no video that can be decoded."""


class ModelError(WqError):
    """The model cannot be found, loaded or used here."""


class ProfileError(WqError):
    """A profile is missing or not valid."""


class DeviceError(WqError):
    """The device is missing or ran out of memory."""


class BudgetError(WqError):
    """A budget is below what a policy needs at its lowest widths."""


def first_line(reason: object) -> str:
    """What a library or a server says, as far as one line of an error goes; an exception without words has a name."""
    nameless = type(reason).__name__ if isinstance(reason, BaseException) else ""
    return (str(reason).strip().splitlines() or [nameless])[0].rstrip(". ")


def system_reason(error: OSError) -> str:
    """What the system says, as the end of a sentence."""
    said = error.strerror or str(error)
    return said[:1].lower() + said[1:]  # the rest may be a path


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is in no registry: the nearest match and the whole list."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{close[0]}`? " if close else ""
    return UsageError(f"there is no {kind} `{name}`", f"{hint}known: {', '.join(known)}")
