"""Decoder layers compiled for the steps: the tokens of the layers as they are, one compilation for all layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_families import MAKERS
from tiny_models import llava_onevision
from tiny_qwen_vl import qwen_vl
from torch._dynamo.utils import counters

from wq_cli import decoding, engine
from wq_cli.config import Generation, Quantization
from wq_cli.models import loading
from wq_cli.models.base import VideoModel

STEPS = 9
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "qwen2": llava_onevision,
    "qwen3_vl": lambda folder: qwen_vl(folder, "qwen3_vl"),  # norms of queries and keys
    "mistral": MAKERS["llava_next-mistral"],
}


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch.compiler.reset()
    counters.clear()


def load(maker: Callable[[Path], Path], folder: Path, dtype: str = "float32") -> VideoModel:
    return loading.load(str(maker(folder)), torch.device("cpu"), dtype)  # type: ignore[arg-type]


def prefilled(model: VideoModel, policy: str = "windowquant", rows: int = 1) -> engine.Prefilled:
    """Every layer has room of its own, as plans give them."""
    frames = np.random.default_rng(0).integers(0, 256, (23, 40, 52, 3), dtype=np.uint8)
    prompts = [model.prompt("what happens ?", model.encode(frames, np.arange(23) / 2.0))] * rows
    settings = Quantization(policy=policy, score_norm="rank")
    state = engine.prefill(model, engine.prepare(model, prompts, settings, room=2 * STEPS))
    for index, layer in enumerate(state.cache.layers):
        layer.grow(index)
    return state


def answer(model: VideoModel, state: engine.Prefilled, compiled: bool) -> list[list[int]]:
    how = Generation(max_new_tokens=STEPS, compile_layers=compiled)
    return torch.stack(list(decoding.decode(model, state, how, False)), dim=1).tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_layers_give_the_same_tokens(family: str, tmp_path: Path) -> None:
    model = load(FAMILIES[family], tmp_path)
    state = prefilled(model)
    assert answer(model, state, True) == answer(model, prefilled(model), False)
    assert state.compiled is not None and state.compiled.obstacle is None
    assert state.compiled.compile_ms is not None
    assert counters["stats"]["unique_graphs"] == 1  # not one a layer
    assert not any("forward" in vars(module) for module in model.model.modules())
