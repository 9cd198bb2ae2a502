"""Options behind a policy's name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from wq_cli import policies
from wq_cli.errors import UsageError
from wq_cli.policies.options import Options, parse


@dataclass(frozen=True)
class Example(Options):
    bits: Literal[2, 4] = 2
    clip: float = 1.0
    residual: int = 128
    fp8: bool = True


def test_defaults_and_every_type() -> None:
    assert parse(Example, "a") == Example()
    assert parse(Example, "a:bits=4:clip=0.92:residual=0:fp8=off") == Example(4, 0.92, 0, False)


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("a:bts=4", "there is no option of `a` `bts`", "did you mean `bits`?"),
        ("a:bits", "`bits` in `a:bits` is not an option", "write `a:KEY=VALUE`"),
        ("a:bits=3", "`bits=3` in `a:bits=3` is not possible", "one of 2, 4"),
        ("a:fp8=yes", "`fp8=yes` in `a:fp8=yes` is not possible", "one of on, off"),
        ("a:residual=x", "`residual=x` in `a:residual=x` is not a whole number", ""),
        ("a:residual=3000000000", "`residual=3000000000` in `a:residual=3000000000` is not below 2**31", ""),
        ("a:clip=nan", "`clip=nan` in `a:clip=nan` is not a number", ""),
        ("a:clip=1e999", "`clip=1e999` in `a:clip=1e999` is not a number", ""),
        ("a:residual=1:residual=2", "`residual` is given twice in `a:residual=1:residual=2`", ""),
        ("a:clip=x", "`clip=x` in `a:clip=x` is not a number", ""),
    ],
)
def test_what_is_wrong_is_named(spec: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(Example, spec)
    assert caught.value.message == message
    assert hint in (caught.value.hint or "")


def test_a_policy_without_options_says_so() -> None:
    with pytest.raises(UsageError, match="policy `fp16` has no options"):
        policies.check("fp16:bits=4")
