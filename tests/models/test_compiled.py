"""Decoder layers compiled for the steps: the tokens of the layers as they are, one compilation for all layers.

Making C++ of a graph takes seconds, so that most tests run the graph that would be made into kernels.
"""

from __future__ import annotations

import functools
import gc
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_families import MAKERS
from tiny_models import llava_onevision
from tiny_qwen_vl import TOKENS, qwen_vl
from torch._dynamo.utils import counters

from wq_cli import compiled, decoding, engine
from wq_cli.config import Generation, Quantization
from wq_cli.models import loading
from wq_cli.models.base import VideoModel

STEPS = 9
# One of every kind of decoder layer.
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "qwen2": llava_onevision,
    "llama": MAKERS["smolvlm"],
    "mistral": MAKERS["llava_next-mistral"],
    **{name: functools.partial(qwen_vl, family=name) for name in TOKENS},
}


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch.compiler.reset()
    counters.clear()


@pytest.fixture
def graphs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    make = functools.partial(torch.compile, backend="aot_eager", fullgraph=True, dynamic=False)
    monkeypatch.setattr(compiled, "_compiled", functools.cache(make))


def load(maker: Callable[[Path], Path], folder: Path, dtype: str = "float32", device: str = "cpu") -> VideoModel:
    return loading.load(str(maker(folder)), torch.device(device), dtype)  # type: ignore[arg-type]


def prefilled(model: VideoModel, policy: str = "windowquant", rows: int = 1) -> engine.Prefilled:
    """Every layer has room of its own, as plans give them."""
    frames = np.random.default_rng(0).integers(0, 256, (23, 40, 52, 3), dtype=np.uint8)
    prompts = [model.prompt("what happens ?", model.encode(frames, np.arange(23) / 2.0))] * rows
    settings = Quantization(policy=policy, score_norm="rank")
    state = engine.prefill(model, engine.prepare(model, prompts, settings, room=2 * STEPS))
    for index, layer in enumerate(state.cache.layers):
        layer.grow(index)
    return state


def answer(model: VideoModel, state: engine.Prefilled, compile_layers: bool) -> list[list[int]]:
    how = Generation(max_new_tokens=STEPS, compile_layers=compile_layers)
    return torch.stack(list(decoding.decode(model, state, how, False)), dim=1).tolist()


@pytest.mark.usefixtures("graphs_only")
@pytest.mark.parametrize("family", FAMILIES)
def test_all_layers_of_a_family_are_one_graph(family: str, tmp_path: Path) -> None:
    check(load(FAMILIES[family], tmp_path))


def test_kernels_give_the_same_tokens(tmp_path: Path) -> None:
    check(load(llava_onevision, tmp_path))


def check(model: VideoModel) -> None:
    state = prefilled(model)
    assert answer(model, state, True) == answer(model, prefilled(model), False)
    assert state.compiled is not None and state.compiled.obstacle is None
    assert state.compiled.compile_ms is not None
    assert counters["stats"]["unique_graphs"] == 1  # not one a layer
    assert not any("forward" in vars(module) for module in model.model.modules())


@pytest.mark.usefixtures("graphs_only")
def test_other_batches_compile_anew_and_the_cache_is_let_go(tmp_path: Path) -> None:
    model = load(llava_onevision, tmp_path)
    for rows, graphs in ((1, 1), (2, 2), (1, 2)):
        state = prefilled(model, rows=rows)
        tokens = answer(model, state, True)
        assert tokens == answer(model, prefilled(model, rows=rows), False)
        assert counters["stats"]["unique_graphs"] == graphs
        layer = weakref.ref(state.cache.layers[0])
        del state
        gc.collect()
        assert layer() is None


@pytest.mark.usefixtures("graphs_only")
@pytest.mark.parametrize("policy", ["akvq-vl", "kivi"])  # coordinates of its own; what no kernel reads
def test_every_way_of_storing(policy: str, tmp_path: Path) -> None:
    model = load(llava_onevision, tmp_path)
    state = prefilled(model, policy)
    assert answer(model, state, True) == answer(model, prefilled(model, policy), False)
    assert state.compiled is not None and state.compiled.obstacle is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_logits_in_bfloat16_are_within_its_rounding(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the same weights in float32, compiled layers, which round less often, are about as far off."""
    sizes = {"heads": 7, "kv_heads": 1, "head_dim": 64}  # that the kernels take
    model = load(functools.partial(llava_onevision, **sizes), tmp_path, "bfloat16", device)

    def logits(compile_layers: bool) -> torch.Tensor:
        """Of the step after a given token."""
        state = prefilled(model, "fp16")
        given = torch.tensor([7], device=device)
        state.logits = torch.nn.functional.one_hot(given, state.logits.shape[1]).float()
        seen: list[torch.Tensor] = []
        with monkeypatch.context() as patch:
            plain = model.logits
            patch.setattr(model, "logits", lambda hidden: seen.append(plain(hidden)) or seen[-1])
            list(decoding.decode(model, state, Generation(max_new_tokens=4, compile_layers=compile_layers), False))
        assert (state.graph == "CUDA graph") == (device == "cuda" and model.dtype == torch.bfloat16)
        return seen[0]

    written, fused = logits(False), logits(True)
    model.model.float()
    exact = logits(False)
    assert not torch.equal(written, exact)
    assert (fused - exact).norm() < 1.5 * (written - exact).norm()


def test_what_cannot_be_compiled_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(llava_onevision, tmp_path)
    expected = answer(model, prefilled(model), False)
    mlp = model.decoder.layers[1].mlp
    whole = type(mlp).forward

    def forward(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return whole(self, x)

    monkeypatch.setattr(type(mlp), "forward", forward)
    state = prefilled(model)
    assert answer(model, state, True) == expected
    assert state.compiled is not None and state.compiled.compile_ms is None
    assert state.compiled.obstacle is not None
    assert state.compiled.obstacle.startswith("the decoder's layers are not compiled: ")
    hooked = prefilled(model)
    layer = model.decoder.layers[0]
    layer.forward = layer.forward
    assert answer(model, hooked, True) == expected
    assert hooked.compiled is not None
    assert hooked.compiled.obstacle == "the decoder's layers are not compiled: others have changed what they run"
    assert layer.__dict__.pop("forward") is not None


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 48), (3, 48)])
def test_a_row_times_a_matrix(shape: tuple[int, ...], bias: bool) -> None:
    x, weight = torch.randn(shape, dtype=torch.float64), torch.randn(20, 48, dtype=torch.float64)
    added = torch.randn(20, dtype=torch.float64) if bias else None
    expected = torch.nn.functional.linear(x, weight, added)
    torch.testing.assert_close(compiled.row_times(x, weight, added), expected)


def test_large_matrices_and_several_rows_stay_with_the_library(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def kept(graph: torch.fx.GraphModule, inputs: object, **options: Any) -> object:
        warnings.warn("of the compiler", stacklevel=1)
        assert torch.ops.aten.mm.default not in options["decompositions"]
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "compile_fx", kept)
    monkeypatch.setattr(compiled, "SUMMED_ELEMENTS", 64)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 9))
    step = torch.compile(layer, backend=compiled._inductor, fullgraph=True, dynamic=False)
    for rows in (1, 2):
        x = torch.randn(rows, 1, 8)
        torch.testing.assert_close(step(x), layer(x))
    assert not [warning for warning in recwarn if "of the compiler" in str(warning.message)]
    sums = [len(graph.graph.find_nodes(op="call_function", target=compiled.row_times)) for graph in graphs]
    assert sums == [1, 0]
