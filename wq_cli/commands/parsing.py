"""Texts, numbers, times, sizes and width pairs as typed on a command line (or as found in a profile)."""

from __future__ import annotations

import math
import os
import re

import typer

_UNITS = {"": 1, "b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}


def parse_text(value: str) -> str:
    """A text that is not empty; UTF-8 where the locale does not know its letters."""
    if not value.strip():
        raise typer.BadParameter("the text is empty")
    try:
        return os.fsencode(value).decode("utf-8")
    except UnicodeError:
        raise typer.BadParameter("the text holds bytes that cannot be decoded") from None


def parse_whole(value: str | int) -> int:
    """`32`."""
    try:
        return int(value)
    except ValueError:
        raise typer.BadParameter(f"`{value}` is not a whole number") from None


def parse_wholes(text: str) -> tuple[int, ...]:
    """`25,50,100`."""
    return tuple(parse_whole(part) for part in text.split(","))


def parse_number(value: str | float) -> float:
    """`3.2`; infinity and NaN are no numbers here."""
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise typer.BadParameter(f"`{value}` is not a number")
    return number


def parse_numbers(text: str) -> tuple[float, ...]:
    """`3.5,4,5`."""
    return tuple(parse_number(part) for part in text.split(","))


def parse_seconds(text: str) -> float:
    """`90`, `1:30` or `0:01:30.5` in seconds."""
    if not re.fullmatch(r"(\d+:){0,2}\d+(\.\d*)?|\.\d+", text, re.ASCII):
        raise typer.BadParameter(f"`{text}` is not a time such as `90`, `1:30` or `0:01:30.5`")
    total = 0.0
    for part in text.split(":"):
        total = 60 * total + float(part)
    return total


def parse_bytes(text: str | int) -> int:
    """`500MiB`, `2GB` or plain bytes. A unit without `B` is binary: `500M` is `500MiB`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(text).strip().lower(), re.ASCII)
    if not match or match[2] not in _UNITS:
        raise typer.BadParameter(f"`{text}` is not a size such as `500MiB`, `2GB` or `1048576`")
    return int(float(match[1]) * _UNITS[match[2]])


def parse_kv_split(text: str) -> tuple[tuple[int, int], ...]:
    """`16/16,8/4,4/2`: key/value widths of the levels high, middle and low."""
    if not re.fullmatch(r"\d+/\d+(,\d+/\d+){2}", text, re.ASCII):
        raise typer.BadParameter(f"`{text}` is not three pairs of key/value bits such as `16/16,8/4,4/2`")
    pairs = (level.split("/") for level in text.split(","))
    return tuple((int(key_bits), int(value_bits)) for key_bits, value_bits in pairs)
