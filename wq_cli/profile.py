"""Profiles: YAML files that name a model and its settings. A user's own come before packaged ones of the same name."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from wq_cli.config import Dtype
from wq_cli.errors import ProfileError, WqError, system_reason, unknown_name

FALLBACK = "demo"
_SUFFIX = ".yaml"


@dataclass(frozen=True)
class Profile:
    """A model and the settings it is used with (`_RULES` has the meaning and range of each key).

    Attributes:
        path: The file it was read from.
        architecture: For random weights: `text_config`, `vision_config` and what else the model's transformers
            configuration needs, and `frame_processor`, the `class` of its video or image processor with settings.
    """

    path: Path
    name: str
    description: str
    model: str
    revision: str | None = None
    model_type: str | None = None
    frames: int = 32
    max_side: int | None = None
    window: int | None = None
    alpha: float | None = None
    kv_dtype: Dtype | None = None
    dtype: Dtype | None = None
    sensitivity: tuple[float, ...] | None = None
    architecture: Mapping[str, Any] | None = None
    notes: str | None = None

    @property
    def is_packaged(self) -> bool:
        return self.path.parent == packaged_folder()

    def option_defaults(self) -> dict[str, Any]:
        """What replaces the defaults of the options of the same name."""
        values = {key: getattr(self, key) for key in ("window", "alpha", "kv_dtype", "dtype")}
        return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class _Rule:
    meaning: str
    expected: str
    accepts: Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and 0 < value < float("inf")


def _is_sensitivity(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(_is_number(s) and 0 <= s <= 1 for s in value)


def _is_architecture(value: Any) -> bool:
    if not isinstance(value, dict) or not all(isinstance(value.get(part), dict) for part in _ARCHITECTURE):
        return False
    return _is_text(value["frame_processor"].get("class"))


_ARCHITECTURE = ("text_config", "vision_config", "frame_processor")
_TEXT = ("a text", _is_text)
_COUNT = ("a whole number from 1", _is_count)
_DTYPE = (f"one of {', '.join(get_args(Dtype))}", lambda value: value in get_args(Dtype))
_RULES = {
    "name": _Rule("what `--profile` takes", *_TEXT),
    "description": _Rule("one line for `wq profiles list`", *_TEXT),
    "model": _Rule("hub repository or folder with the weights; `demo` is the model inside this package", *_TEXT),
    "revision": _Rule("commit or tag of the hub repository", *_TEXT),
    "model_type": _Rule("family in transformers, known without a download", *_TEXT),
    "frames": _Rule("frames taken when neither `--frames` nor `--fps` is given", *_COUNT),
    "max_side": _Rule("longest side of a decoded frame in pixels", *_COUNT),
    "window": _Rule("visual tokens per window", *_COUNT),
    "alpha": _Rule("shape of the thresholds, eqs 10 and 11", "a positive number", _is_positive),
    "kv_dtype": _Rule("number type of what stays at full precision", *_DTYPE),
    "dtype": _Rule("number type of weights and activations", *_DTYPE),
    "sensitivity": _Rule(
        "s_i of every layer, eq 9; measured in the prefill when absent",
        "a list of numbers from 0 to 1",
        _is_sensitivity,
    ),
    "architecture": _Rule(
        "configuration that `--random-weights` builds",
        "a mapping with `text_config`, `vision_config` and `frame_processor`, which has a `class`",
        _is_architecture,
    ),
    "notes": _Rule("what else a user should know", *_TEXT),
}
_REQUIRED = ("name", "description", "model")


def config_folder() -> Path:
    """Where a user's profiles and choices are kept: `WQ_CONFIG_HOME`, else the platform's place for settings."""
    if home := os.environ.get("WQ_CONFIG_HOME"):
        return Path(home)
    import typer

    return Path(typer.get_app_dir("wq"))


def packaged_folder() -> Path:
    """The profiles that come with wq."""
    from importlib.resources import files

    try:
        return Path(str(files("wq_cli.profiles")))
    except ModuleNotFoundError:  # a checkout on the path, not installed: the mapping in pyproject.toml is not in force
        return Path(__file__).parents[1] / "profiles"


def _catalogue() -> dict[str, Path]:
    """File of every known name."""
    folders = (packaged_folder(), config_folder() / "profiles")
    return {path.stem: path for folder in folders for path in sorted(folder.glob(f"*{_SUFFIX}"))}


def names() -> list[str]:
    """Known profiles by name."""
    return sorted(_catalogue())


def valid() -> list[Profile]:
    """Known profiles by name, without those that are not valid."""
    found = []
    for name in names():
        with suppress(ProfileError):
            found.append(load(name))
    return found


def choice_file() -> Path:
    """The file that `use` writes the default to."""
    return config_folder() / "default-profile"


def default_name() -> str:
    """The profile in use when none is named."""
    try:
        return choice_file().read_text(encoding="utf-8").strip() or FALLBACK
    except (FileNotFoundError, NotADirectoryError):
        return FALLBACK


def use(name: str) -> Path:
    """Make a profile the default.

    Args:
        name: A known name, or the path of a YAML file.

    Returns:
        The file that remembers it.

    Raises:
        ProfileError: No such profile, or not a valid one.
        WqError: The choice cannot be written.
    """
    from wq_cli.report import files

    chosen = load(name)
    path = choice_file()
    make_folder(path.parent)
    files.write(path, f"{chosen.path.resolve() if _is_path(name) else name}\n".encode())
    return path


def own_file(profile: Profile) -> Path:
    """Where a profile can be changed: the user's own file, or that of a copy which comes before a packaged one.

    Raises:
        WqError: It cannot be written.
    """
    from wq_cli.report import files

    if not profile.is_packaged:
        path = profile.path
    else:
        path = config_folder() / "profiles" / profile.path.name
        make_folder(path.parent)
    files.check_target(path)
    return path


def remember(profile: Profile, key: str, value: Sequence[float] | str) -> None:
    """Write what was measured or found into `own_file`.

    Args:
        profile: A valid one.
        key: What `_RULES` calls it.
        value: In place of the one it may have.

    Raises:
        WqError: It cannot be written; what was there before is still there.
    """
    import yaml

    from wq_cli.report import files

    is_text = isinstance(value, str)
    value = value if is_text else [float(s) for s in value]
    line = yaml.safe_dump({key: value}, default_flow_style=False if is_text else None, width=float("inf"))
    expected = read(profile.path) | {key: value}
    # As text, so that the comments and line ends of a file that somebody wrote stay.
    written = profile.path.read_bytes().decode()
    text = re.sub(rf"(?m)^{key}:.*\n?(?:[ \t-].*\n?|\n)*", "", written.replace("\r\n", "\n"))
    text = f"{text.rstrip()}\n{line}"
    if _parsed(text) != expected:
        raise WqError(f"`{key}` cannot be added to `{profile.path}` as it is written", f"write it: `{line.rstrip()}`")
    files.write(own_file(profile), (text.replace("\n", "\r\n") if "\r\n" in written else text).encode())


def _parsed(text: str) -> Any:
    """What YAML holds; None for what is none."""
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None


def make_folder(path: Path) -> None:
    """
    Raises:
        WqError: It cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WqError(f"cannot make the folder `{path}`: {system_reason(error)}") from error


def _is_path(name: str) -> bool:
    return name.endswith((_SUFFIX, ".yml")) or os.sep in name


def find(name: str | None) -> Path:
    """The file of a profile.

    Args:
        name: A known name, the path of a YAML file, or None for the default.

    Raises:
        ProfileError: There is none; the hint lists the known names and the nearest one.
    """
    wanted = default_name() if name is None else name
    if _is_path(wanted):
        return Path(wanted)
    known = _catalogue()
    if wanted not in known:
        error = unknown_name("profile", wanted, sorted(known))
        raise ProfileError(error.message, error.hint)
    return known[wanted]


def load(name: str | None = None) -> Profile:
    """A valid profile.

    Args:
        name: A known name, the path of a YAML file, or None for the default.

    Raises:
        ProfileError: No such profile, or a key of it is not valid.
    """
    path = find(name)
    content = read(path)
    if wrong := problems(content):
        raise ProfileError(
            f"profile `{path.name}` is not valid: {'; '.join(wrong)}", "see `wq profiles show demo` for one that is"
        )
    if "sensitivity" in content:
        content["sensitivity"] = tuple(content["sensitivity"])
    return Profile(path=path, **content)


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, whatever its keys.

    Raises:
        ProfileError: The file cannot be read or holds no mapping.
    """
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ProfileError(f"cannot read profile `{path}`: {system_reason(error)}") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ProfileError(
            f"profile `{path}` is not YAML{where}", "see `wq profiles show demo` for one that is"
        ) from error
    if not isinstance(content, dict):
        raise ProfileError(f"profile `{path}` holds no `key: value` lines", "see `wq profiles show demo`")
    return content


def problems(content: Mapping[str, Any]) -> list[str]:
    """What is wrong with a profile, one sentence each; empty when it is valid."""
    wrong = [f"`{key}` is missing" for key in _REQUIRED if key not in content]
    for key, value in content.items():
        if key in _RULES:
            if not _RULES[key].accepts(value):
                wrong.append(f"`{key}` must be {_RULES[key].expected}, not `{value}`")
            continue
        close = difflib.get_close_matches(str(key), _RULES, n=1)
        wrong.append(f"unknown key `{key}`" + (f", did you mean `{close[0]}`?" if close else ""))
    return wrong


def explain(profile: Profile) -> list[tuple[str, Any, str]]:
    """(key, value, meaning) of everything the profile sets."""
    return [(key, value, rule.meaning) for key, rule in _RULES.items() if (value := getattr(profile, key)) is not None]
