"""What a policy was told of a model beforehand: a small JSON file of numbers per layer, next to the user's profiles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wq_cli import profile as profiles
from wq_cli.errors import WqError

if TYPE_CHECKING:
    from pathlib import Path

    from wq_cli.profile import Profile

# Name of a measurement to one entry per layer.
Numbers = Mapping[str, list[float] | list[list[float]]]


def file_of(profile: Profile, policy: str) -> Path:
    """The user's file."""
    return profiles.config_folder() / "profiles" / f"{profile.path.stem}.{policy}.json"


def write(profile: Profile, policy: str, numbers: Numbers) -> Path:
    """Keep what was measured.

    Raises:
        WqError: The file cannot be written; what was there before is still there.
    """
    from wq_cli.report import files

    path = file_of(profile, policy)
    profiles.make_folder(path.parent)
    files.write(path, f"{json.dumps(numbers)}\n".encode())
    return path


def read(profile: Profile | None, policy: str, layers: int) -> Numbers:
    """What was measured: the user's file, or else the one that comes with the profile.

    Raises:
        WqError: There is none, it is not of this model, or it holds something else than finite numbers.
    """
    if profile is None:
        raise WqError(f"`{policy}` needs what was measured of a profile's model", "leave `--model` away")
    numbers = find(profile, policy, layers)
    if numbers is None:
        raise WqError(f"`{policy}` knows nothing of the model of profile `{profile.name}`", _hint(policy))
    return numbers


def find(profile: Profile | None, policy: str, layers: int) -> Numbers | None:
    """The same, or None where there is none.

    Raises:
        WqError: It is not of this model, or it holds something else than finite numbers.
    """
    if profile is None:
        return None
    for path in (file_of(profile, policy), profile.path.parent / f"{profile.path.stem}.{policy}.json"):
        try:
            numbers = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise WqError(f"cannot read `{path}`", _hint(policy)) from error
        if not isinstance(numbers, dict) or any(not isinstance(x, list) or len(x) != layers for x in numbers.values()):
            raise WqError(f"`{path}` is not of a model with {layers} layers", _hint(policy))
        if not all(map(_are_finite, numbers.values())):
            raise WqError(f"`{path}` is damaged", _hint(policy))
        return numbers
    return None


def _hint(policy: str) -> str:
    return f"measure it: `wq calibrate --policy {policy}`"


def _are_finite(entries: list[Any]) -> bool:
    """Whether every layer has a number, or every layer equally many of them."""
    import numpy as np

    try:
        return bool(np.isfinite(np.array(entries, dtype=np.float64)).all())
    except (ValueError, TypeError, OverflowError):
        return False
