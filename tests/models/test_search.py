"""When layers are planned, what of it counts as time of the search, and that it changes no plan."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision

from wq_cli import engine
from wq_cli.config import Quantization
from wq_cli.device import HostCopy
from wq_cli.models import loading
from wq_cli.models.base import Prompt, VideoModel
from wq_cli.policies import focus

LAYERS = 3
SENSITIVITY = [0.9, 0.5, 0.2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> VideoModel:
    folder: Path = llava_onevision(tmp_path_factory.mktemp("onevision"))
    return loading.load(str(folder), torch.device("cpu"), "auto")


@pytest.fixture(scope="module")
def prompt(model: VideoModel) -> Prompt:
    frames = np.random.default_rng(0).integers(0, 256, (20, 40, 52, 3), dtype=np.uint8)
    return model.prompt("what happens in the video ?", model.encode(frames, np.arange(20) / 2.0))


def prepared(model: VideoModel, prompt: Prompt, spec: str, sensitivity: list[float] | None) -> engine.Request:
    return engine.prepare(model, [prompt], Quantization(spec, window=8), room=4, sensitivity=sensitivity)


@pytest.mark.parametrize(
    ("spec", "sensitivity", "ahead"),
    [
        ("windowquant", SENSITIVITY, True),
        ("windowquant", None, False),
        ("cocktail", None, True),
        ("rtn4", None, True),
        ("focus", SENSITIVITY, False),
        ("akvq-vl", SENSITIVITY, False),
    ],
)
def test_layers_are_planned_together_where_nothing_is_waited_for(
    model: VideoModel, prompt: Prompt, spec: str, sensitivity: list[float] | None, ahead: bool
) -> None:
    request = prepared(model, prompt, spec, sensitivity)
    events: list[str] = []
    plan_layer, seal = request.policy.plan_layer, request.cache.seal
    request.policy.plan_layer = lambda *args: (events.append("plan"), plan_layer(*args))[1]  # type: ignore[method-assign]
    request.cache.seal = lambda *args: (events.append("seal"), seal(*args))[1]  # type: ignore[method-assign]
    engine.prefill(model, request)
    together = ["plan"] * LAYERS + ["seal"] * LAYERS
    assert events == (together if ahead else ["plan", "seal"] * LAYERS)


@pytest.mark.parametrize("spec", ["windowquant", "random"])
def test_plans_that_are_made_together_are_those_made_layer_by_layer(
    model: VideoModel, prompt: Prompt, spec: str
) -> None:
    measured = engine.prefill(model, prepared(model, prompt, spec, None))
    known = engine.prefill(model, prepared(model, prompt, spec, measured.sensitivity))  # type: ignore[arg-type]
    for one, other in zip(measured.plans, known.plans, strict=True):
        np.testing.assert_array_equal(one.key_bits, other.key_bits)
        np.testing.assert_array_equal(one.value_bits, other.value_bits)


@pytest.mark.parametrize("spec", ["windowquant", "focus"])
def test_waiting_for_the_device_is_no_time_of_the_search(
    model: VideoModel, prompt: Prompt, spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(copy: HostCopy) -> torch.Tensor:
        if not hasattr(copy, "came"):
            time.sleep(0.1)
            copy.came = True  # type: ignore[attr-defined]
        return copy._tensor

    monkeypatch.setattr(HostCopy, "get", slow)
    request = prepared(model, prompt, spec, SENSITIVITY)
    started = time.perf_counter()
    engine.prefill(model, request)
    waited = 100 * (1 if spec == "windowquant" else 1 + LAYERS)
    assert request.found.on_host.ms < 90 < waited <= 1e3 * (time.perf_counter() - started)


def test_the_looks_of_a_policy_are_time_of_the_search(
    model: VideoModel, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = focus.look
    monkeypatch.setattr(focus, "look", lambda *args: (time.sleep(0.05), look(*args))[1])
    request = prepared(model, prompt, "focus", None)
    engine.prefill(model, request)
    assert request.found.ms - request.found.on_host.ms >= 50 * LAYERS
