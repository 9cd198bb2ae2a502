"""Profiles filled with random weights: the sizes are those of the published checkpoints, and a run goes through."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from tiny_qwen_vl import PATCH, configs

from wq_cli import decoding, engine, profile, room
from wq_cli.bench import random_weights
from wq_cli.config import Generation, Quantization, Runtime, Settings
from wq_cli.errors import UsageError
from wq_cli.models import FAMILIES, sizing
from wq_cli.profile import Profile

# Parameters that the hub counts in the safetensors files of each repository.
PUBLISHED = {
    "internvl2-8b": 8_075_365_376,
    "internvl3-8b": 7_944_373_760,
    "llava-1.5-7b": 7_063_427_072,
    "llava-1.5-13b": 13_351_494_656,
    "llava-1.6-mistral-7b": 7_566_747_648,
    "llava-1.6-vicuna-7b": 7_063_431_168,
    "llava-next-video-7b": 7_063_431_168,
    "qwen2-vl-2b": 2_208_985_600,
    "qwen2-vl-7b": 8_291_375_616,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen3-vl-2b": 2_127_532_032,
    "qwen3-vl-4b": 4_437_815_808,
    "qwen3-vl-8b": 8_767_123_696,
    "smolvlm2-256m": 256_484_928,
    "smolvlm2-500m": 507_482_304,
    "smolvlm2-2.2b": 2_246_784_880,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_architecture_has_the_published_number_of_parameters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_weights.loading, "choose_device", lambda asked: torch.device("meta"))
    chosen = profile.load(name)
    model = random_weights.build(chosen, Settings(runtime=Runtime(dtype="float32")))
    assert sum(parameter.numel() for parameter in model.model.parameters()) == PUBLISHED[name]
    assert model.model_type == chosen.model_type
    # Its own number of frames has room, with the text between them, a question and the longest answer.
    cost = sizing.VisualCost.of(model, np.zeros((2, 432, 768, 3), np.uint8), np.arange(2.0))
    text = model.words_between * chosen.frames + 100
    assert cost.tokens(chosen.frames) + text + Generation().max_new_tokens <= room.context(model.text_config)[0]


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("internvl3-8b", 2 * 256),
        ("llava-1.5-7b", 2 * 576),
        ("llava-1.6-vicuna-7b", 2 * 577),
        ("llava-next-video-7b", 2 * 144),
        ("llava-onevision-7b", 2 * 196 + 1),
        ("qwen2-vl-7b", 405),
        ("qwen2.5-vl-7b", 405),
        ("qwen3-vl-8b", 336),
        ("smolvlm2-2.2b", 2 * 81),
        ("smolvlm2-500m", 2 * 64),
    ],
)
def test_visual_tokens_of_a_pair_of_frames(name: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What docs/models.md says, told without weights: for Qwen, 432 x 768 in whole squares of 28 or 32 pixels."""
    monkeypatch.setattr(random_weights.loading, "choose_device", lambda asked: torch.device("meta"))
    model = random_weights.build(profile.load(name), Settings(runtime=Runtime(dtype="float32")))
    assert len(model.frame_of_tokens(np.zeros((2, 432, 768, 3), dtype=np.uint8), np.arange(2.0))) == tokens


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_run_over_random_weights(family: str) -> None:
    vision, text = configs(family, 100)
    size = {"shortest_edge": 256, "longest_edge": 4096}
    frames = {"class": "Qwen2VLVideoProcessor", "patch_size": PATCH, "temporal_patch_size": 2, "size": size}
    if family == "qwen3_vl":
        frames |= {"class": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 256, "longest_edge": 9 * 4096}}
    parts = {"text_config": text, "vision_config": vision, "frame_processor": frames}
    made = Profile(Path("tiny.yaml"), "tiny", "for a test", "tiny", model_type=family, architecture=parts)
    model = random_weights.build(made, Settings(runtime=Runtime(device="cpu")))
    assert type(model.model) is getattr(transformers, FAMILIES[family][2])
    pictures = np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3), dtype=np.uint8)
    visual = model.encode(pictures, np.arange(9.0))
    prompt = random_weights.prompt(model, visual)
    assert prompt.visual_mask.sum() == len(visual.embeds) == 5 * 64
    runs = 1 + int((torch.diff(prompt.visual_mask.nonzero()[:, 0]) > 1).sum())
    assert runs == (5 if family == "qwen3_vl" else 1)
    state = engine.prefill(model, engine.prepare(model, [prompt], Quantization(), room=4))
    assert len(list(decoding.decode(model, state, Generation(max_new_tokens=4)))) == 4
    assert state.cache.visual_bits < 16


@pytest.mark.parametrize("how", [{"weights": "4bit"}, {"device": "multi"}])
def test_options_that_random_weights_do_not_follow_are_refused(how: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="full weights on one device"):
        random_weights.build(profile.load("llava-onevision-0.5b"), Settings(runtime=Runtime(**how)))  # type: ignore[arg-type]
