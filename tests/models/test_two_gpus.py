"""A model whose layers lie on two GPUs, against the same model on one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import llava_onevision
from tiny_qwen_vl import qwen_vl

from wq_cli import decoding, engine
from wq_cli.config import Generation, Quantization
from wq_cli.models import loading
from wq_cli.models.base import VideoModel

pytestmark = pytest.mark.gpu
pytest.importorskip("accelerate")
QUESTION = "what happens in the video ?"
FAMILIES = {
    "llava_onevision": lambda folder: llava_onevision(folder, layers=4),
    "qwen3_vl": lambda folder: qwen_vl(folder, "qwen3_vl"),
}


@pytest.fixture(autouse=True)
def two_gpus() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def spread(model: VideoModel) -> VideoModel:
    """The later layers of the decoder on the second GPU, as accelerate places them when the first one is full."""
    from accelerate import dispatch_model, infer_auto_device_map

    layers = list(model.decoder.layers)
    later = sum(parameter.nbytes for layer in layers[len(layers) // 2 :] for parameter in layer.parameters())
    total = sum(parameter.nbytes for parameter in model.model.parameters())
    device_map = infer_auto_device_map(
        model.model, {0: total - later, 1: 2 * total}, no_split_module_classes=list(model.model._no_split_modules)
    )
    dispatch_model(model.model, device_map, skip_keys=model.model._skip_keys_device_placement)
    return model


@pytest.mark.parametrize("policy", ["fp16", "windowquant", "rtn2"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_layers_on_two_devices_answer_as_on_one(family: str, policy: str, tmp_path: Path) -> None:
    checkpoint = loading.open_checkpoint(str(FAMILIES[family](tmp_path)))
    frames = np.random.default_rng(0).integers(0, 256, (8, 40, 52, 3), dtype=np.uint8)
    found = []
    for place in (lambda model: model, spread):
        model = place(loading.load_weights(checkpoint, "cuda:0", "float32", "full"))
        prompts = [model.prompt(text, model.encode(frames, np.arange(8.0))) for text in (QUESTION, "a dog ?")]
        settings = Quantization(policy=policy, window=8, score_norm="rank")
        state = engine.prefill(model, engine.prepare(model, prompts, settings, room=8))
        devices = {layer.run[0].device.index for layer in state.cache.layers}
        first = state.logits.double().cpu()
        tokens = torch.stack([t.cpu() for t in decoding.decode(model, state, Generation(max_new_tokens=6), False)])
        found.append((devices, first, state.sensitivity, tokens))
    (one, expected, sensitivity, words), (two, logits, again, spoken) = found
    assert (one, two) == ({0}, {0, 1})
    assert (logits - expected).norm() / expected.norm() < 1e-4
    assert again == (sensitivity if policy != "windowquant" else pytest.approx(sensitivity, abs=1e-4))
    assert torch.equal(spoken, words)


def test_multi_loads_over_all_gpus(tmp_path: Path) -> None:
    checkpoint = loading.open_checkpoint(str(llava_onevision(tmp_path, layers=12, heads=8, head_dim=64)))
    model = loading.load_weights(checkpoint, "multi", "float16", "full")
    assert set(model.model.hf_device_map.values()) == {0, 1}
    frames = np.random.default_rng(0).integers(0, 256, (6, 28, 28, 3), dtype=np.uint8)
    prompt = model.prompt(QUESTION, model.encode(frames, np.arange(6.0)))
    state = engine.prefill(model, engine.prepare(model, [prompt], Quantization(window=8), room=4))
    assert len(list(decoding.decode(model, state, Generation(max_new_tokens=3), False))) == 3
