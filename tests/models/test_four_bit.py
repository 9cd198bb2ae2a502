"""Weights in 4 bits through bitsandbytes, which runs on a CPU too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision

from wq_cli import decoding, engine
from wq_cli.config import Generation, Quantization
from wq_cli.models import loading, sizing

pytest.importorskip("bitsandbytes")
pytest.importorskip("accelerate")
# The levels of NF4, QLoRA (arXiv 2305.14314), appendix E.
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
]  # fmt: skip
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def nearest_levels(weight: torch.Tensor) -> torch.Tensor:
    """Weights in blocks of 64 at the nearest NF4 level of their largest magnitude, float64."""
    blocks = weight.double().cpu().reshape(-1, 64)
    scale = blocks.abs().amax(dim=1, keepdim=True)
    levels = torch.tensor(NF4, dtype=torch.float64)
    nearest = (blocks[..., None] / scale[..., None] - levels).abs().argmin(dim=-1)
    return (levels[nearest] * scale).view_as(weight)


@pytest.mark.parametrize("device", DEVICES)
def test_the_decoder_is_in_four_bits_and_the_rest_as_it_was(device: str, tmp_path: Path) -> None:
    import bitsandbytes

    checkpoint = loading.open_checkpoint(str(llava_onevision(tmp_path, heads=4, kv_heads=2, head_dim=64)))
    model = loading.load_weights(checkpoint, device, "float32", "4bit")
    full = loading.load_weights(checkpoint, device, "float32", "full")
    packed = {name for name, part in model.model.named_modules() if isinstance(part, bitsandbytes.nn.Linear4bit)}
    linear = {name for name, part in full.model.named_modules() if isinstance(part, torch.nn.Linear)}
    assert packed == linear - set(sizing.other_linears(full)) != set()

    for name in packed:
        expected = nearest_levels(full.model.get_submodule(name).weight.detach())
        part = model.model.get_submodule(name)
        restored = bitsandbytes.functional.dequantize_4bit(part.weight.data, part.weight.quant_state)
        # The scales are quantized once more, to 8 bits.
        assert (restored.double().cpu() - expected).norm() / expected.norm() < 0.02

    frames = np.random.default_rng(0).integers(0, 256, (6, 28, 28, 3), dtype=np.uint8)
    prompt = model.prompt("what happens in the video ?", model.encode(frames, np.arange(6.0)))
    expected = full.prompt("what happens in the video ?", full.encode(frames, np.arange(6.0)))
    assert torch.equal(prompt.embeds, expected.embeds), "the tower keeps its own weights"
    state = engine.prefill(model, engine.prepare(model, [prompt], Quantization(policy="rtn4", window=8), room=8))
    tokens = [int(token) for token in decoding.decode(model, state, Generation(max_new_tokens=4))]
    assert 1 <= len(tokens) <= 4


def test_no_code_is_fetched_from_the_hub(tmp_path: Path) -> None:
    """With the package `kernels` at hand bitsandbytes runs what it finds on the hub."""
    (tmp_path / "kernels.py").write_text("def get_kernel(*_, **__):\n    print('fetched')\n    raise OSError\n")
    model = llava_onevision(tmp_path / "model")
    code = f"from wq_cli.models.loading import *; load_weights(open_checkpoint({str(model)!r}), 'cpu', 'auto', '4bit')"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("device", DEVICES)
def test_bytes_are_those_of_the_estimate(device: str, tmp_path: Path) -> None:
    checkpoint = loading.open_checkpoint(str(llava_onevision(tmp_path, heads=4, kv_heads=2, head_dim=64)))
    model = loading.load_weights(checkpoint, device, "float32", "4bit")
    held = {}
    for parameter in model.model.parameters():
        held[parameter.data_ptr()] = parameter.nbytes
        if state := getattr(parameter, "quant_state", None):
            held[state.absmax.data_ptr()] = state.absmax.nbytes
            held[state.state2.absmax.data_ptr()] = state.state2.absmax.nbytes
    assert sizing.weight_bytes(checkpoint.outline, torch.float32, "4bit") == pytest.approx(sum(held.values()), rel=0.01)
