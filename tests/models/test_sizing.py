"""What is known of a model before its weights are read, against the model itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_videos import make
from tiny_families import MAKERS
from tiny_models import llava_onevision
from tiny_qwen_vl import qwen_vl

from wq_cli import device, pipeline
from wq_cli.config import Generation, Runtime, Sampling, Settings
from wq_cli.errors import DeviceError, WqError
from wq_cli.models import loading, sizing

FAMILIES = {
    **MAKERS,
    "llava_onevision": llava_onevision,
    **{name: (lambda folder, name=name: qwen_vl(folder, name)) for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")},
}


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.notices: list[str] = []

    def stage(self, name: str, total: int | None = None) -> None:
        self.stages.append(name)

    def advance(self, steps: int = 1) -> None: ...

    def notice(self, text: str) -> None:
        self.notices.append(text)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_an_outline_costs_what_the_model_costs(family: str, tmp_path: Path) -> None:
    checkpoint = loading.open_checkpoint(str(FAMILIES[family](tmp_path)))
    model = loading.load_weights(checkpoint, "cpu", "auto", "full")
    held = {parameter.data_ptr(): parameter.nbytes for parameter in model.model.parameters()}
    assert sizing.weight_bytes(checkpoint.outline, torch.float32, "full") == sum(held.values())
    assert checkpoint.outline.device.type == "meta"
    frames = np.random.default_rng(0).integers(0, 256, (4, 40, 52, 3), dtype=np.uint8)
    visual = model.encode(frames, np.arange(4.0))
    assert checkpoint.outline.frame_of_tokens(frames, np.arange(4.0)).tolist() == visual.frames.tolist()
    cost = sizing.VisualCost.of(checkpoint.outline, frames[:2], np.arange(2.0))
    for count in (1, 3, 4):
        tokens = len(model.encode(frames[:count], np.arange(float(count))).embeds)
        assert cost.tokens(count) == tokens
        assert cost.frames(tokens) >= count > cost.frames(tokens - 1)


def test_four_bit_weights_leave_tower_and_head_alone(tmp_path: Path) -> None:
    folder = llava_onevision(tmp_path, layers=2, heads=4, kv_heads=2, head_dim=16)
    outline = loading.open_checkpoint(str(folder)).outline
    kept = sizing.other_linears(outline)
    assert "lm_head" in kept and any("vision_tower" in name for name in kept)
    assert not any("language_model.layers" in name for name in kept)
    # Two layers of width 64 with 2 of 4 heads for keys and values, 128 inside the MLP.
    packed = 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128)
    saved = sizing.weight_bytes(outline, torch.float16, "full") - sizing.weight_bytes(outline, torch.float16, "4bit")
    assert saved == pytest.approx(packed * (2 - 0.5 - 1 / 64 - 1 / 4096), abs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llava_onevision(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("clip") / "a.mp4", n=40))


def test_too_many_frames_are_refused_before_the_weights_are_read(
    folder: Path, clip: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "load_weights", lambda *_: pytest.fail("weights were read"))
    settings = Settings(Sampling(frames=40), generation=Generation(3950), runtime=Runtime(model=str(folder)))
    with pytest.raises(WqError) as caught:  # 4 tokens a frame and a newline, 4,096 positions
        pipeline.ask(clip, "q", settings, Heard())
    assert "40 frames, question and answer need 4111 tokens, the model has 4096 positions" in caught.value.message
    assert caught.value.hint == "`--frames 36` fits"
    few = replace(settings, sampling=Sampling(frames=36), generation=Generation(3000))
    with pytest.raises(pytest.fail.Exception, match="weights were read"):
        pipeline.ask(clip, "q", few, Heard())


def test_weights_larger_than_the_free_memory_are_told_before_they_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "memory", lambda device: (2**10, 2**33))
    heard = Heard()
    checkpoint = loading.open_checkpoint(str(folder))
    pipeline.load_model(checkpoint, Settings(), heard)
    (notice,) = heard.notices
    assert "`cpu` has 0.0 GiB free" not in notice and "0.0 GiB free" in notice
    for way in ("`--dtype bfloat16`", "`--weights 4bit`", "a smaller model"):
        assert way in notice
    monkeypatch.setattr(device, "memory", lambda device: (2**33, 2**33))
    assert loading.room_notice(checkpoint, "cpu", "auto", "full") is None


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_out_of_memory_while_loading_says_what_to_lower(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    import transformers

    def full(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(transformers.LlavaOnevisionForConditionalGeneration, "from_pretrained", full)
    with pytest.raises(DeviceError) as caught:
        loading.load_weights(loading.open_checkpoint(str(folder)), "cpu", "auto", "full")
    assert caught.value.message.startswith("`cpu` ran out of memory")
    assert caught.value.hint == "take `--dtype bfloat16`, `--weights 4bit` or a smaller model"


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), device.memory_errors(torch.device("cpu"), ""):
        raise RuntimeError("shapes do not match")


@pytest.mark.parametrize(
    ("device", "weights", "missing", "message", "extra"),
    [
        ("multi", "full", {"accelerate"}, "`--device multi` needs `accelerate`", "multi"),
        (
            "cpu",
            "4bit",
            {"bitsandbytes", "accelerate"},
            "`--weights 4bit` needs `bitsandbytes` and `accelerate`",
            "4bit",
        ),
    ],
)
def test_extras_that_are_not_installed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    weights: str,
    missing: set[str],
    message: str,
    extra: str,
) -> None:
    monkeypatch.setattr(loading, "find_spec", lambda name: None if name in missing else object())
    with pytest.raises(DeviceError) as caught:
        loading.load_weights(loading.open_checkpoint(str(folder)), device, "auto", weights)  # type: ignore[arg-type]
    assert (caught.value.message, caught.value.hint) == (message, f"pip install 'wq-video[{extra}]'")


def test_free_memory_is_what_the_system_says() -> None:
    free, total = device.memory(torch.device("cpu"))
    assert free is not None and total is not None and 0 < free < total
