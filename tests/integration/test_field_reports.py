"""Rows of groups B, D and E that need a whole run with a tiny model."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_videos import make
from tiny_models import llava_onevision

from wq_cli import device, engine, pipeline
from wq_cli.config import Generation, Quantization, Runtime, Sampling, Settings
from wq_cli.errors import DeviceError
from wq_cli.models import base
from wq_cli.models.llava_onevision import LlavaOnevision
from wq_cli.results import AskResult


class Silent:
    """A listener that hears nothing."""

    def stage(self, name: str, total: int | None = None) -> None: ...

    def advance(self, steps: int = 1) -> None: ...

    def prepared(self, result: AskResult) -> None: ...

    def token(self, text: str) -> None: ...


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = llava_onevision(tmp_path_factory.mktemp("model"))
    return Settings(
        Sampling(frames=12), Quantization(window=8), Generation(max_new_tokens=3), Runtime(model=str(folder))
    )


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make(tmp_path_factory.mktemp("clip") / "a.mp4", n=24))


def test_b4_b9_tokens_grow_by_the_same_number_for_each_frame(clip: str, settings: Settings) -> None:
    for frames in (1, 2, 8):
        result = pipeline.ask(clip, "q", replace(settings, sampling=Sampling(frames=frames)), Silent())
        assert (result.video.frames, result.visual_tokens) == (frames, 4 * frames + 1)  # 2 x 2 pooled, one newline


def test_b15_a_long_prompt_counts_to_its_end(clip: str, settings: Settings) -> None:
    words = ["what", "happens", "is", "there", "a", "dog", "cat", "in", "the", "video"] * 30
    results = []
    for text in (" ".join(words), " ".join([*words[:-20], *["left"] * 20])):
        result, _ = pipeline.inspect(clip, [text], settings, Silent())
        scores = [window.similarity for window in result.windows[0] if window.role == "scored"]
        assert len(scores) == 5 and np.isfinite(np.array(scores, float)).all()
        results.append(scores)
    assert results[0] != results[1], "the last words are heard"


def test_b16_frames_go_through_the_tower_in_batches(
    clip: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = []
    tokens = LlavaOnevision.frame_tokens

    def counted(self: LlavaOnevision, frames: np.ndarray) -> torch.Tensor:
        if self.device.type != "meta":  # there only shapes are looked at, before the weights are read
            batches.append(len(frames))
        return tokens(self, frames)

    monkeypatch.setattr(LlavaOnevision, "frame_tokens", counted)
    pipeline.ask(clip, "q", replace(settings, sampling=Sampling(frames=20)), Silent())
    assert sum(batches) == 20 and max(batches) == base.FRAMES_PER_BATCH


@pytest.mark.parametrize("policy", ["windowquant", "rtn2", "random"])
def test_c5_a_black_clip(tmp_path: Path, settings: Settings, policy: str) -> None:
    def black(i: int, width: int, height: int) -> np.ndarray:
        return np.zeros((height, width, 3), np.uint8)

    path = str(make(tmp_path / "a.mp4", n=24, draw=black))
    quantization = replace(settings.quantization, policy=policy)
    result = pipeline.ask(path, "what happens?", replace(settings, quantization=quantization), Silent())
    assert result.answer_tokens >= 1
    for window in result.windows:
        assert window.similarity is None or np.isfinite(window.similarity)


def test_d9_out_of_memory_is_one_line_and_the_next_run_works(
    clip: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmany lines")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "prefill", full)
        patch.setattr(device, "memory", lambda device: (2**29, 2**33))
        with pytest.raises(DeviceError) as caught:
            pipeline.ask(clip, "q", settings, Silent())
    assert caught.value.message == "`cpu` ran out of memory: 0.5 of 8.0 GiB are free"
    assert caught.value.hint is not None
    for option in ("`--frames` (now 12)", "`max_side`", "`--bits`", "`--dtype`", "`--weights 4bit`"):
        assert option in caught.value.hint
    assert pipeline.ask(clip, "q", settings, Silent()).answer_tokens >= 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_thirty_questions_leave_nothing(clip: str, settings: Settings) -> None:
    """A run that kept its model, clip or cache would add more than the bound."""

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(held), torch.Tensor) for held in gc.get_objects())

    def resident_mib() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    for _ in range(5):
        pipeline.ask(clip, "what happens?", settings, Silent())
    before, resident = tensors(), resident_mib()
    for _ in range(25):
        pipeline.ask(clip, "what happens?", settings, Silent())
    assert tensors() == before
    assert resident_mib() - resident < 30
