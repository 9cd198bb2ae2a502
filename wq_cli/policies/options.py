"""Options of a policy, written behind its name: `kivi:bits=4:residual=64`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from wq_cli.errors import UsageError, unknown_name


@dataclass(frozen=True)
class Options:
    """No options. A policy that has some puts a frozen dataclass of its own in this place, with defaults for all.

    Fields are numbers, `bool` (written on and off) or a `Literal`; `__post_init__` raises UsageError outside a range.
    """


OptionsType = TypeVar("OptionsType", bound=Options)


def name_of(spec: str) -> str:
    """The policy's name in a spec."""
    return spec.partition(":")[0]


def parse(kind: type[OptionsType], spec: str) -> OptionsType:
    """The options in a spec.

    Args:
        kind: Dataclass of the policy's options.
        spec: `NAME`, or `NAME:KEY=VALUE`, with any number of pairs.

    Raises:
        UsageError: An unknown key, or a value outside its range.
    """
    name, *pairs = spec.split(":")
    types = get_type_hints(kind)
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip().replace("-", "_")
        if not equals:
            raise UsageError(f"`{pair}` in `{spec}` is not an option", f"write `{name}:KEY=VALUE`")
        if not types:
            raise UsageError(f"policy `{name}` has no options")
        if key not in types:
            raise unknown_name(f"option of `{name}`", key, types)
        if key in values:
            raise UsageError(f"`{key}` is given twice in `{spec}`")
        values[key] = _value(spec, key, text.strip(), types[key])
    return kind(**values)


def _value(spec: str, key: str, text: str, kind: Any) -> Any:
    """A value from its text.

    Raises:
        UsageError: It is none of `kind`.
    """
    known: dict[str, Any] = {"on": True, "off": False} if kind is bool else {}
    if get_origin(kind) is Literal:
        known = {str(value): value for value in get_args(kind)}
    if known:
        if text not in known:
            raise UsageError(f"`{key}={text}` in `{spec}` is not possible", f"one of {', '.join(known)}")
        return known[text]
    try:
        value = kind(text)
        if not math.isfinite(value):
            raise ValueError
    except (ValueError, OverflowError):
        expected = "whole number" if kind is int else "number"
        raise UsageError(f"`{key}={text}` in `{spec}` is not a {expected}") from None
    if kind is int and abs(value) >= 2**31:
        raise UsageError(f"`{key}={text}` in `{spec}` is not below 2**31")
    return value
