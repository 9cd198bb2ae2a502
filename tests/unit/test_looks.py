"""`wq bench ablation`: attention and streams against transformers' own, settings that change and nothing else."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision

from wq_cli.bench.ablations import ABLATIONS
from wq_cli.bench.looks import attention_of_windows
from wq_cli.commands.ablation import VARIANTS
from wq_cli.config import Quantization
from wq_cli.measurements import sensitivity
from wq_cli.models import loading
from wq_cli.models.base import Prompt, VideoModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    folder = llava_onevision(tmp_path_factory.mktemp("model"))
    return loading.load_weights(loading.open_checkpoint(str(folder)), "cpu", "float32", "full")


@pytest.fixture(scope="module")
def prompt(model: VideoModel) -> Prompt:
    frames = np.random.default_rng(0).integers(0, 256, (8, 28, 28, 3), dtype=np.uint8)
    return model.prompt("what happens ?", model.encode(frames, np.arange(8.0)))


def test_attention_is_that_of_queries_and_keys_by_hand(model: VideoModel, prompt: Prompt) -> None:
    """Layer 0 from its own projections and rotary embedding, softmax in float64."""
    from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

    found = attention_of_windows(model, prompt, 8)
    layer, length = model.decoder.layers[0], len(prompt.embeds)
    with torch.inference_mode():
        normed = layer.input_layernorm(prompt.embeds[None])
        query, key = (
            projection(normed).view(1, length, -1, 16).transpose(1, 2)
            for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj)
        )
        cos, sin = model.decoder.rotary_emb(normed, torch.arange(length)[None])
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        scores = (query.double() @ key.repeat_interleave(2, dim=1).double().transpose(-1, -2)) / 4
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        paid = scores.softmax(dim=-1)[0, :, prompt.visual_end :][..., prompt.visual_mask].mean(dim=(0, 1))
    share = (paid / paid.sum()).numpy()
    visual = int(prompt.visual_mask.sum())
    expected = [share[8 * w : 8 * w + 8].sum() for w in range(visual // 8)]
    assert found.shape == (3, visual // 8)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4)
    assert (found.sum(axis=1) <= 1 + 1e-9).all()
    assert model.text_config._attn_implementation == "sdpa"


def test_layers_are_compared_by_their_streams(model: VideoModel, prompt: Prompt) -> None:
    """The stream behind the attention is the layer's input plus what its attention module gives back."""
    outputs: list[torch.Tensor] = []
    hooks = [
        layer.self_attn.register_forward_hook(lambda module, args, output: outputs.append(output[0].double()))
        for layer in model.decoder.layers
    ]
    with torch.inference_mode():
        streams = model.decoder(inputs_embeds=prompt.embeds[None], output_hidden_states=True).hidden_states
    for hook in hooks:
        hook.remove()
    for found, before, attention in zip(sensitivity(model, prompt)["sensitivity"], streams[:3], outputs, strict=True):
        cosine = torch.nn.functional.cosine_similarity(before.double(), before.double() + attention, dim=-1)
        assert found == pytest.approx(float(cosine.mean().clamp(0, 1)), abs=1e-5)


def test_the_command_knows_every_experiment() -> None:
    assert set(VARIANTS) == set(ABLATIONS)


@pytest.mark.parametrize("name", list(ABLATIONS))
def test_an_ablation_changes_its_settings_and_nothing_else(name: str) -> None:
    base = Quantization(window=16, alpha=3.0, seed=5)
    changed = {
        "scorer": {"scorer"},
        "parts": {"policy", "fixed_first_window", "reorder"},
        "window": {"window"},
        "alpha": {"alpha"},
        "grouping": {"policy"},
    }
    rows = ABLATIONS[name].rows(base)
    assert len({str(asdict(row)) for row in rows.values()}) == len(rows) >= 3
    for row in rows.values():
        different = {key for key, value in asdict(row).items() if value != asdict(base)[key]}
        assert different <= changed[name]
    assert set(ABLATIONS[name].paper) <= {"fp16", *rows}
