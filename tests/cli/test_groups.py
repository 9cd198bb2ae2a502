"""Option groups: one declaration, one value, no two meanings for a name."""

from __future__ import annotations

import inspect

import pytest

from wq_cli.commands import options as opt
from wq_cli.commands.groups import grouped
from wq_cli.config import Generation, Quantization, Sampling


def test_a_shared_option_appears_once_and_reaches_both_groups() -> None:
    seen = []

    @grouped
    def command(*, quantization: Quantization, generation: Generation) -> None:
        seen.append((quantization.seed, generation.seed, quantization.reorder, generation.max_new_tokens))

    parameters = inspect.signature(command).parameters
    assert list(parameters).count("seed") == 1
    values = {name: parameter.default for name, parameter in parameters.items()}
    command(**{**values, "seed": 7, "no_reorder": True, "max_new_tokens": 3})
    assert seen == [(7, 7, False, 3)]


def test_options_stand_in_the_order_of_the_command() -> None:
    @grouped
    def command(video: opt.Video, *, sampling: Sampling, policy: opt.Policy = "fp16") -> None: ...

    assert list(inspect.signature(command).parameters) == ["video", "frames", "fps", "sample", "start", "end", "policy"]


def test_two_different_options_of_one_name_are_refused() -> None:
    with pytest.raises(TypeError, match="two different options are called frames"):

        @grouped
        def command(frames: opt.Video, *, sampling: Sampling) -> None: ...


def test_defaults_are_those_of_the_settings() -> None:
    seen = []

    @grouped
    def command(*, sampling: Sampling, quantization: Quantization, generation: Generation) -> None:
        seen.append((sampling, quantization, generation))

    command(**{name: parameter.default for name, parameter in inspect.signature(command).parameters.items()})
    assert seen == [(Sampling(), Quantization(), Generation())]
