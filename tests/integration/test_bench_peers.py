"""`wq bench --peers`: transformers' caches on the same prompts, against what transformers itself does with them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import llava_onevision
from transformers import DynamicCache, QuantizedCache
from transformers.cache_utils import DynamicLayer

from wq_cli import bench, engine
from wq_cli.bench import peers
from wq_cli.config import Quantization, Runtime, Sampling, Settings
from wq_cli.console import Listener, Screen
from wq_cli.results import BenchResult


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = llava_onevision(tmp_path_factory.mktemp("model"))
    return Settings(Sampling(frames=12), Quantization(window=8), runtime=Runtime(model=str(folder), device="cpu"))


def measured(settings: Settings, **how: Any) -> BenchResult:
    with Listener(Screen(quiet=True)) as silent:
        return bench.run(None, "what happens?", settings, silent, policies=["rtn2"], with_peers=True, **how)


def test_dynamic_cache_is_full_precision_and_says_what_is_left_out(settings: Settings) -> None:
    result = measured(settings, decode_tokens=3, fidelity_tokens=6, batch=2)
    ours, dynamic = result.rows[0], {row.policy: row for row in result.rows}["hf dynamic"]
    assert dynamic.is_peer and not ours.is_peer
    assert dynamic.effective_bits == 32 and dynamic.search_ms is None and dynamic.seal_ms is None
    # 3 layers, 2 KV heads of 16 channels, keys and values in float32; the prompt and three steps.
    per_token = 2 * 2 * 3 * 2 * 16 * 4
    assert dynamic.kv_bytes == dynamic.kv_bytes_full and dynamic.kv_bytes % per_token == 0
    assert dynamic.kv_bytes // per_token > result.visual_tokens + 3
    # The same model over the same tokens: our full precision differs by rounding alone, two bits by much more.
    assert dynamic.kl_to_full is not None and ours.kl_to_full is not None
    assert dynamic.kl_to_full < 1e-6 < ours.kl_to_full and dynamic.greedy_agreement == 1
    assert "hf static is left out: CUDA graphs need an NVIDIA GPU, the model is on cpu" in result.notices


def test_steps_of_a_static_cache_are_those_of_transformers(settings: Settings) -> None:
    """A graph records the step without a mask; what it adds to the attention are empty places."""
    subject = bench.open_subject(None, "what happens?", settings, Listener(Screen(quiet=True)), False)
    model, prompt = subject.model, subject.prompt
    tokens = []
    with torch.inference_mode():
        batch = engine.Batch.of([prompt], window=1)
        cache = peers._static(model.text_config, batch.embeds.shape[1] + 5)
        first = peers._prefill(model, batch, cache)[:, -1].argmax(dim=-1)
        step = peers._Step(model, cache, first, batch.next_position)
        for token in peers._repeated(step, 5, as_graph=False):
            tokens.append(int(token))
        given = torch.cat([prompt.embeds, model.embed(torch.tensor([int(first), *tokens[:-1]]))])[None]
        hidden = model.decoder(inputs_embeds=given, use_cache=False).last_hidden_state
        expected = model.logits(hidden)[0, -5:].argmax(dim=-1).tolist()
    assert tokens == expected


class HalfLayer(DynamicLayer):
    """Stands for a library's layer: what it stored is in half precision, inside tuples and dictionaries."""

    def update(self, key: torch.Tensor, value: torch.Tensor, *more: Any, **named: Any) -> Any:
        keys, values = super().update(key, value)
        self.keys, self.values = keys[:, :, :0], values[:, :, :0]
        self.stored = (keys.half(), {"values": values.half()})
        self.keys, self.values = (x.float() for x in (self.stored[0], self.stored[1]["values"]))
        return self.keys, self.values


def test_bytes_are_those_of_every_tensor_inside(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(config: Any, tokens: int) -> Any:
        cache = DynamicCache(config=config)
        cache.layers = [HalfLayer() for _ in cache.layers or range(config.num_hidden_layers)]
        return cache

    monkeypatch.setattr(peers, "PEERS", (peers.Peer("half", make), peers.Peer("broken", lambda *a: 1 / 0)))
    result = measured(settings, decode_tokens=2, fidelity_tokens=4)
    (half,) = [row for row in result.rows if row.is_peer]
    assert half.effective_bits == 32 + 16
    assert half.kl_to_full is not None and half.kl_to_full > 0
    assert result.notices[-1] == "broken is left out: division by zero"


@pytest.mark.parametrize(("backend", "axis", "package"), [("hqq", 1, "hqq"), ("quanto", 0, "optimum")])
def test_bytes_of_library_tensors(backend: str, axis: int, package: str) -> None:
    """Codes of four bits, and a pair of numbers for 64 of them."""
    pytest.importorskip(package)
    from transformers import Qwen2Config

    config = Qwen2Config(num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, hidden_size=256)
    cache = QuantizedCache(backend=backend, config=config, nbits=4, axis_key=axis, axis_value=axis)
    cache.update(torch.randn(1, 2, 256, 64), torch.randn(1, 2, 256, 64), 0)
    held = list(peers._tensors([vars(layer) for layer in cache.layers]))
    assert not any(hasattr(tensor, "__tensor_flatten__") for tensor in held)
    elements = 2 * 2 * 256 * 64
    assert elements / 2 + 2 * elements / 64 < sum(tensor.nbytes for tensor in held) < elements * 0.75
