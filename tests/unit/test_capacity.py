"""What fits a limit: the search over sizes against counting, and counted memory against a formula."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wq_cli import device, profile
from wq_cli.bench import capacity, random_weights
from wq_cli.bench.capacity import Capacity, largest
from wq_cli.bench.paper import TINY, Lab
from wq_cli.config import Quantization, Runtime, Settings
from wq_cli.errors import DeviceError
from wq_cli.models.base import Prompt, VideoModel

# Of the tiny model: 2 layers, one KV head of 64 channels in float32; 25 visual tokens a frame.
LAYERS, HEADS, CHANNELS, HIDDEN, FLOAT = 2, 1, 64, 64, 4
TOKENS_PER_FRAME, OTHER_TOKENS = 25, 1 + random_weights.TOKENS_BEFORE + random_weights.TOKENS_AFTER


@given(st.integers(0, 50_000), st.integers(1, 100_000))
def test_largest_is_within_its_precision_in_few_tries(limit: int, start: int) -> None:
    tried = []

    def fits(size: int) -> bool:
        assert size >= 1
        tried.append(size)
        return size <= limit

    found = largest(fits, start)
    assert found <= limit
    assert limit - found < max(1, capacity.PRECISION * found)
    assert len(tried) <= 40 and len(set(tried)) == len(tried)


def test_a_start_that_is_right_is_confirmed_in_two_tries() -> None:
    tried: list[int] = []
    assert largest(lambda size: not tried.append(size) and size <= 1005, 1000) == 1000  # type: ignore[func-returns-value]
    assert tried == [1000, 1020]


@pytest.fixture(scope="module")
def model() -> VideoModel:
    return random_weights.build(
        random_weights.tiny(profile.load("llava-onevision-7b")), Settings(runtime=Runtime(device="cpu"))
    )


def prompts(model: VideoModel, frames: int) -> list[Prompt]:
    return [Lab(model, Settings(), TINY)._prompt(frames)]


def needed(model: VideoModel, frames: int) -> int:
    """Weights, embeddings and a full-precision cache with room for two more tokens."""
    weights = sum(parameter.numel() for parameter in model.model.parameters()) * FLOAT
    tokens = TOKENS_PER_FRAME * frames + OTHER_TOKENS
    return weights + tokens * HIDDEN * FLOAT + (tokens + 2) * 2 * LAYERS * HEADS * CHANNELS * FLOAT


@pytest.mark.parametrize("without_arithmetic", [False, True])
def test_frames_within_a_limit_are_those_of_the_formula(model: VideoModel, without_arithmetic: bool) -> None:
    measured = Capacity(model, Quantization(policy="fp16"), lambda n: prompts(model, n), without_arithmetic)
    found = measured.within(needed(model, 30))
    assert 29 <= found <= 30
    assert measured.within(needed(model, 1) - 1) == 0


@pytest.mark.parametrize("gigabytes", [24, 1e6])
def test_a_limit_beyond_the_device_is_not_tried(
    model: VideoModel, gigabytes: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is allocated: this computer would run out of memory, and other programs with it."""
    monkeypatch.setattr(device, "memory", lambda where: (20 * 10**9, 24 * 10**9))
    measured = Capacity(model, Quantization(), lambda n: pytest.fail("was tried"))
    with pytest.raises(DeviceError, match=r"^`cpu` has memory to try 0\.625 GB, not (24|1e\+06)$"):
        measured.within(int(gigabytes * 1e9))


def test_less_bits_hold_more(model: VideoModel) -> None:
    limit = needed(model, 30)
    sizes = [
        Capacity(model, Quantization(policy=name), lambda n: prompts(model, n)).within(limit)
        for name in ("fp16", "rtn4", "rtn2")
    ]
    assert sizes == sorted(set(sizes))


def test_arithmetic_comes_back(model: VideoModel) -> None:
    from transformers import AttentionInterface

    from wq_cli.attention import ATTENTION, windowed_attention

    with pytest.raises(ZeroDivisionError), capacity._arithmetic_left_out():
        left_out = AttentionInterface()[ATTENTION]
        query = torch.randn(2, 3, 5, 7)
        output, _ = left_out(None, query)
        assert torch.equal(output, query.transpose(1, 2)) and output.data_ptr() != query.data_ptr()
        layer = torch.nn.Linear(7, 4)
        with torch.inference_mode():
            assert torch.equal(layer(query), torch.zeros(2, 3, 5, 4))
            assert torch.equal(query @ query.mT, torch.zeros(2, 3, 5, 5))
        raise ZeroDivisionError
    assert AttentionInterface()[ATTENTION] is windowed_attention
    assert (torch.ones(1, 2) @ torch.ones(2, 1)).item() == 2
