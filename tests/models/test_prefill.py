"""What the prefill must not hold: dense masks, repeated heads, activations as wide as the MLP for every token."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wq_cli import chunks, engine
from wq_cli.config import Quantization
from wq_cli.models import loading
from wq_cli.models.base import Prompt, VideoModel

KV_HEADS, INTERMEDIATE = 2, 128


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    folder = llava_onevision(tmp_path_factory.mktemp("onevision"), layers=2, kv_heads=KV_HEADS)
    return loading.load(str(folder), torch.device("cpu"), "auto")


def prompts_of(model: VideoModel, *questions: str) -> list[Prompt]:
    frames = np.random.default_rng(0).integers(0, 256, (40, 28, 28, 3), dtype=np.uint8)
    visual = model.encode(frames, np.arange(40) / 2.0)
    return [model.prompt(question, visual) for question in questions]


def prefilled(model: VideoModel, prompts: list[Prompt], policy: str = "rtn2") -> engine.Prefilled:
    return engine.prefill(model, engine.prepare(model, prompts, Quantization(policy=policy, window=8), room=8))


@pytest.fixture
def attention_calls(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """Arguments of every call of PyTorch's attention."""
    calls: list[SimpleNamespace] = []
    attention = torch.nn.functional.scaled_dot_product_attention

    def recorded(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **how: object) -> torch.Tensor:
        calls.append(SimpleNamespace(key=key.shape, **how))
        return attention(query, key, value, **how)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", recorded)
    return calls


@pytest.mark.parametrize("rows", [1, 2])
def test_attention_without_mask_and_without_repeated_heads(
    model: VideoModel, attention_calls: list[SimpleNamespace], rows: int
) -> None:
    prompts = prompts_of(model, "what happens ?") * rows
    attention_calls.clear()  # those of the vision tower
    prefilled(model, prompts)
    assert len(attention_calls) == 2
    for call in attention_calls:
        assert call.attn_mask is None and call.is_causal and call.enable_gqa
        assert call.key == (rows, KV_HEADS, len(prompts[0].embeds), 16)


def test_rows_of_different_lengths_need_a_mask(model: VideoModel, attention_calls: list[SimpleNamespace]) -> None:
    prefilled(model, prompts_of(model, "what happens ?", "is there a dog in the video ?"))
    assert all(call.attn_mask is not None for call in attention_calls[-2:])


@pytest.mark.parametrize("policy", ["fp16", "windowquant"])
@pytest.mark.parametrize("tokens", [1, 7, 50, 1000])
def test_chunks_change_nothing(model: VideoModel, monkeypatch: pytest.MonkeyPatch, policy: str, tokens: int) -> None:
    """Rows of two lengths, in float64."""
    model.model.double()
    try:
        prompts = prompts_of(model, "what happens ?", "is there a dog in the video ?")
        monkeypatch.setattr(chunks, "TOKENS_AT_A_TIME", 10**9)
        whole = prefilled(model, prompts, policy)
        monkeypatch.setattr(chunks, "TOKENS_AT_A_TIME", tokens)
        pieces = prefilled(model, prompts, policy)
    finally:
        model.model.float()
    assert torch.allclose(pieces.logits, whole.logits, rtol=1e-5, atol=1e-5)  # logits are float32
    assert pieces.sensitivity == (whole.sensitivity if policy == "fp16" else pytest.approx(whole.sensitivity))
    assert not any("forward" in module.__dict__ for module in model.decoder.modules())


def test_what_others_put_over_a_forward_is_back_after_an_error(model: VideoModel) -> None:
    mlp = model.decoder.layers[0].mlp
    theirs = mlp.forward
    mlp.forward = theirs
    try:
        with pytest.raises(KeyboardInterrupt), chunks.token_chunks(model.decoder):
            assert mlp.forward is not theirs
            raise KeyboardInterrupt
        assert mlp.forward is theirs
    finally:
        del mlp.forward


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.numbers = max(self.numbers, *made, 0)
        return result


def test_no_tensor_is_longer_than_the_prompt_and_wider_than_its_stream(
    model: VideoModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = prompts_of(model, "what happens ?")
    stream = prompts[0].embeds.numel()
    largest = []
    for tokens in (10**9, 16):
        monkeypatch.setattr(chunks, "TOKENS_AT_A_TIME", tokens)
        with Largest() as made:
            prefilled(model, prompts)
        largest.append(made.numbers)
    assert largest == [len(prompts[0].embeds) * INTERMEDIATE, stream]
