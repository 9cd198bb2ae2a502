"""Times, sizes and width pairs as typed."""

from __future__ import annotations

import pytest
import typer

from wq_cli.commands.parsing import parse_bytes, parse_kv_split, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1:30", 90),
        ("0:01:30.5", 90.5),
        ("0", 0),
        ("2.", 2),
        (".5", 0.5),
        ("1:02:03", 3723),
        ("90:00", 5400),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1:2:3:4", "1:", ":30", "1e3", "nan", "inf", "ten", "1,5", "٣", "1.5:30"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time such as"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1048576", 2**20),
        ("500MiB", 500 * 2**20),
        ("500mib", 500 * 2**20),
        ("2GB", 2 * 10**9),
        ("2 G", 2 * 2**30),
        ("1.5k", 1536),
        ("0.5TB", 5 * 10**11),
        ("7b", 7),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1e9", "5 apples", "1.2.3MB", "²MB", "1PB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size such as"):
        parse_bytes(text)


def test_width_pairs() -> None:
    assert parse_kv_split("16/16,8/4,4/2") == ((16, 16), (8, 4), (4, 2))


@pytest.mark.parametrize("text", ["", "4/2", "8/8,4/2", "16/16,8/4,4/2,2/2", "16,4,2", "a/b,4/2,2/2", "8/8, 4/2,3/2"])
def test_what_are_no_width_pairs(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not three pairs"):
        parse_kv_split(text)
