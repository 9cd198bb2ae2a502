"""B11: frames taken closer together than the model's time axis can tell apart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_qwen_vl import qwen_vl

from wq_cli import describe
from wq_cli.models import loading
from wq_cli.models.base import VideoModel

PAIRS = 12


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, VideoModel]:
    def load(folder: Path, family: str) -> VideoModel:
        return loading.load(str(qwen_vl(folder, family)), torch.device("cpu"), "auto")

    return {name: load(tmp_path_factory.mktemp(name), name) for name in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")}


@pytest.mark.parametrize("fps", [1.0, 2.0, 4.0, 5.0, 8.0])
@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_b11_frames_that_share_a_time_are_told(models: dict[str, VideoModel], family: str, fps: float) -> None:
    """Qwen2.5-VL has two positions a second, a whole number each; the others count pairs or write the time.

    Transformers 5.17 cuts the seconds of a pair to a whole number first, later ones the positions.
    """
    model = models[family]
    frames = np.random.default_rng(0).integers(0, 256, (2 * PAIRS, 44, 61, 3), dtype=np.uint8)
    visual = model.encode(frames, np.arange(len(frames)) / fps)
    said = list(describe.shared_times(model.prompt("what happens ?", visual), visual))
    if family != "qwen2_5_vl":
        assert said == []
        return
    cut_late = {math.floor(pair * 2 / fps * 2 + 1e-9) for pair in range(PAIRS)}
    cut_early = {pair * 2 * int(2 / fps) for pair in range(PAIRS)}
    assert said in [
        [f"the model tells {count} moments apart in {PAIRS} groups of frames: fewer frames a second would do"]
        if count < PAIRS
        else []
        for count in (len(cut_late), len(cut_early))
    ]
