"""Our s_i against what SqueezeAttention made of a Llama of four layers (tests/data/README.md)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaModel

from wq_cli import engine, windows

OFFICIAL = load_file(Path(__file__).parents[1] / "data" / "official_sensitivity.safetensors")
BEFORE, AFTER, COSINE = OFFICIAL["before"], OFFICIAL["after"], OFFICIAL["cosine"]
LAYERS, TOKENS, WIDTH = BEFORE.shape
# One of their means is negative, for which the thresholds have no meaning: we clamp.
EXPECTED = OFFICIAL["mean"].clamp(0, 1).tolist()


def test_the_streams_they_compared_give_their_mean() -> None:
    assert OFFICIAL["mean"].min() < 0
    ours = [float(windows.sensitivity(x[None], y[None])) for x, y in zip(BEFORE, AFTER, strict=True)]
    assert ours == pytest.approx(EXPECTED, abs=1e-6)


def test_a_mask_leaves_the_mean_of_their_other_tokens() -> None:
    mask = torch.arange(TOKENS)[None] >= 7
    ours = [float(windows.sensitivity(x[None], y[None], mask)) for x, y in zip(BEFORE, AFTER, strict=True)]
    assert ours == pytest.approx(COSINE[:, 7:].double().mean(dim=1).clamp(0, 1).tolist(), abs=1e-6)


def test_hooks_on_the_same_model_measure_the_same() -> None:
    """Their model is a Llama with its forward written anew; ours is that of transformers, watched."""
    config = LlamaConfig(
        vocab_size=2, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=LAYERS, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    decoder = LlamaModel(config).eval()
    weights = {name.removeprefix("weights."): x for name, x in OFFICIAL.items() if name.startswith("weights.")}
    assert decoder.load_state_dict(weights, strict=False).missing_keys == ["embed_tokens.weight"]
    found: dict[int, float | None] = {}
    model: Any = SimpleNamespace(decoder=decoder)
    watched = engine.after_each_layer(model, None, True, None, found.__setitem__, lambda layer, stream: None)
    with torch.inference_mode(), watched:
        decoder(inputs_embeds=BEFORE[0][None])
    assert found == pytest.approx(dict(enumerate(EXPECTED)), abs=1e-5)
