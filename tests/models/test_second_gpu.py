"""D5: a model on the second GPU runs there, kernels included, while the first one is the current device."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision

import wq_kernels
from wq_cli import engine
from wq_cli.config import Quantization
from wq_cli.models import loading

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two NVIDIA GPUs"),
]


def logits(folder: Path, device: str, backend: str) -> torch.Tensor:
    """Of a question through the packed cache of a clip, [N, vocabulary] float64."""
    model = loading.load(str(folder), torch.device(device), "float16")
    frames = np.random.default_rng(0).integers(0, 256, (100, 40, 52, 3), dtype=np.uint8)
    prompt = model.prompt("what happens in the video ?", model.encode(frames, np.arange(100) / 2.0))
    with wq_kernels.use_backend(backend):  # type: ignore[arg-type]
        request = engine.prepare(model, [prompt], Quantization(score_norm="rank"), room=8, until_visual_end=True)
        state = engine.prefill(model, request)
        found = engine.extend(model, state, prompt.embeds[None, prompt.visual_end :], last_only=False)
    assert str(found.device) == device
    return found[0].double().cpu()


def test_d5_the_second_gpu_does_the_work(tmp_path: Path) -> None:
    folder = llava_onevision(tmp_path / "model", heads=7, kv_heads=1, head_dim=64)
    first = logits(folder, "cuda:0", "triton")
    assert torch.cuda.current_device() == 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(0)
    before = torch.cuda.memory_allocated(0)
    second, reference = logits(folder, "cuda:1", "triton"), logits(folder, "cuda:1", "torch")
    assert torch.cuda.max_memory_allocated(0) == before, "nothing is done on the first"
    assert (second - reference).norm() / reference.norm() < 0.005
    torch.testing.assert_close(second, first)
