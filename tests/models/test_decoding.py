"""Decoding step by step: places counted on the device against one pass over the whole answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision

import wq_kernels
from wq_cli import decoding, engine
from wq_cli.config import Generation, Quantization
from wq_cli.models import loading
from wq_cli.models.base import VideoModel

STEPS = 9
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    folder = llava_onevision(tmp_path_factory.mktemp("onevision"), heads=7, kv_heads=1, head_dim=64)
    on_gpu = request.param == "cuda"
    return loading.load(str(folder), torch.device(request.param), "float16" if on_gpu else "float32")


def prefilled(model: VideoModel, policy: str, questions: list[str], room: int = 64) -> engine.Prefilled:
    frames = np.random.default_rng(0).integers(0, 256, (23, 40, 52, 3), dtype=np.uint8)
    prompts = [model.prompt(question, model.encode(frames, np.arange(23) / 2.0)) for question in questions]
    return engine.prefill(model, engine.prepare(model, prompts, Quantization(policy=policy), room=room))


@pytest.mark.parametrize("questions", [["what happens ?"], ["what happens ?", "is there a dog in the video ?"]])
@pytest.mark.parametrize("policy", ["fp16", "windowquant", "rtn2"])
def test_steps_give_the_tokens_of_a_loop_over_extend(model: VideoModel, policy: str, questions: list[str]) -> None:
    """The second way appends with slices and numbers known to the host; the first must not depend on the room left."""
    stepped = prefilled(model, policy, questions, room=2)
    tokens = torch.stack(list(decoding.decode(model, stepped, Generation(max_new_tokens=STEPS), False)), dim=1)
    looped = prefilled(model, policy, questions)
    expected = [looped.logits.argmax(dim=-1)]
    for _ in range(STEPS - 1):
        logits = engine.extend(model, looped, model.embed(expected[-1])[:, None])
        expected.append(logits.argmax(dim=-1))
    assert tokens.tolist() == torch.stack(expected, dim=1).tolist()
    for layer, other in zip(stepped.cache.layers, looped.cache.layers, strict=True):
        assert (layer.length, layer.raw_length) == (other.length, other.raw_length)
        assert layer.cursor is None
    assert stepped.position.tolist() == looped.position.tolist()
    if model.device.type == "cpu":
        assert stepped.graph == "step by step, on cpu"


@pytest.mark.gpu
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_steps_are_one_graph(model: VideoModel, temperature: float) -> None:
    """Replays give what eager steps give, drawn with the same seed; what cannot be recorded says so."""
    if model.device.type != "cuda":
        pytest.skip("graphs are CUDA's")
    how = Generation(max_new_tokens=STEPS, temperature=temperature, seed=3)
    state = prefilled(model, "windowquant", ["what happens ?"])
    tokens = [int(token) for token in decoding.decode(model, state, how, False)]
    assert state.graph == "CUDA graph"
    eager = prefilled(model, "windowquant", ["what happens ?"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "obstacle", lambda *_: "asked not to")
        assert [int(token) for token in decoding.decode(model, eager, how, False)] == tokens
    assert eager.graph == "asked not to"
    with wq_kernels.use_backend("torch"):
        plain = prefilled(model, "windowquant", ["what happens ?"])
        assert len(list(decoding.decode(model, plain, how, False))) == STEPS
    assert plain.graph == "step by step, since the cache runs in PyTorch: asked for"


def test_what_follows_an_answer_goes_on_from_it(model: VideoModel) -> None:
    """After the steps the cache takes many tokens at once again, at the right places."""
    state = prefilled(model, "rtn4", ["what happens ?"])
    tokens = torch.stack(list(decoding.decode(model, state, Generation(max_new_tokens=4), False)), dim=1)
    more = engine.extend(model, state, model.embed(tokens[:, -1:].repeat(1, 3)), last_only=False)
    other = prefilled(model, "rtn4", ["what happens ?"])
    row = torch.cat([tokens[:, :-1], tokens[:, -1:].repeat(1, 3)], dim=1)
    expected = engine.extend(model, other, model.embed(row), last_only=False)[:, -3:]
    assert (more - expected).norm() < (1e-5 if model.device.type == "cpu" else 2e-2) * expected.norm()
