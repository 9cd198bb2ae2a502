"""The decoder layers of a step compiled by `torch.compile`: a handful of kernels where a layer launches dozens.

Norms, projections, rotary position, MLP and the write into the cache become one graph; attention over packed windows
stays the one operation that it is. All layers of a model run the same compiled function: what they differ in reaches
it as a tensor, since a number would be compiled into it. Another batch size, dtype or model compiles anew.

A token alone meets matrices as a row. As sums, such products take the norm before them and bias, activation and
residual after them into their kernels, whose tiles are then chosen by time. Large matrices stay with the library, which
reads those nearer to the memory's bandwidth than what it saves around them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import time
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch._dynamo import maybe_mark_dynamic
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from torch._inductor.compile_fx import compile_fx
from torch._inductor.decomposition import select_decomp_table

from wq_cli.attention import attend_sealed
from wq_cli.engine import run_decoder
from wq_cli.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wq_cli.cache import WindowCache, WindowCacheLayer
    from wq_cli.models.base import VideoModel

# What it says of a CUDA toolkit without a GPU would stand in the middle of the answer.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)

# For inductor: sums over matrices reach the memory's bandwidth only with tiles that were tried out.
_OPTIONS = {"coordinate_descent_tuning": True}

# Elements of the largest matrix whose products become sums.
SUMMED_ELEMENTS = 2**25

_NOT_COMPILED = "the decoder's layers are not compiled"
_numbers = itertools.count()
_layers: WeakValueDictionary[int, WindowCacheLayer] = WeakValueDictionary()


@torch.library.custom_op("wq::attend_sealed", mutates_args=())
def _attend_sealed(
    query: torch.Tensor,
    raw_key: torch.Tensor,
    raw_value: torch.Tensor,
    number: torch.Tensor,
    scaling: float | None,
    sliding_window: int | None,
) -> torch.Tensor:
    """`attention.attend_sealed` of the layer with this number, which lies on the CPU."""
    return attend_sealed(_layers[int(number)], query, raw_key, raw_value, scaling, sliding_window)


@_attend_sealed.register_fake
def _(query: torch.Tensor, *_: Any) -> torch.Tensor:
    batch, heads, count, channels = query.shape
    return query.new_empty(batch, count, heads, channels)


class StepLayer:
    """A layer of the cache as its compiled decoder layer sees it, in the place of the whole cache."""

    def __init__(self, layer: WindowCacheLayer) -> None:
        self._layer = layer
        number = next(_numbers)
        _layers[number] = layer
        self._number = torch.tensor(number)

    def mark_capacity(self) -> None:
        """Runs of layers differ in length, for which nothing is to be compiled anew."""
        for run in self._layer.run:
            maybe_mark_dynamic(run, 2)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one token; what the model takes a cache for."""
        self._layer.put(key_states, value_states)
        return key_states, value_states

    def attend(self, query: torch.Tensor, scaling: float | None, sliding_window: int | None) -> torch.Tensor:
        """[B, Hq, 1, D] to [B, 1, Hq, D]. The run is handed over so that its write comes before."""
        run = self._layer.raw_key, self._layer.raw_value
        return _attend_sealed(query, *run, self._number, scaling, sliding_window)


class CompiledDecoder:
    """One token more through the decoder with its layers compiled, or as they are where that fails.

    Attributes:
        obstacle: A sentence on why they run as they are; None when compiled.
        compile_ms: What the first token took, compilation included; None before it and where they run as they are.
    """

    def __init__(self, model: VideoModel, cache: WindowCache) -> None:
        self._model, self._cache = model, cache
        self._steps = [StepLayer(layer) for layer in cache.layers]
        self.compile_ms: float | None = None
        changed = any("forward" in vars(layer) for layer in model.decoder.layers)
        self.obstacle = f"{_NOT_COMPILED}: others have changed what they run" if changed else None

    def __call__(self, embeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """`engine.run_decoder` of tokens [B, 1, D], within `WindowCache.stepping`."""
        started = time.perf_counter()
        if self.obstacle is None:
            try:
                with self._compiled_layers():
                    hidden = run_decoder(self._model, embeds, positions, self._cache)
                if self.compile_ms is None:
                    self.compile_ms = (time.perf_counter() - started) * 1e3
                return hidden
            except (TorchDynamoException, FailOnRecompileLimitHit) as error:
                self.obstacle = f"{_NOT_COMPILED}: {first_line(getattr(error, 'inner_exception', error))}"
        # A layer that ran already writes the same token to the same place.
        return run_decoder(self._model, embeds, positions, self._cache)

    @contextmanager
    def _compiled_layers(self) -> Iterator[None]:
        layers = list(zip(self._model.decoder.layers, self._steps, strict=True))
        for layer, step in layers:
            step.mark_capacity()
            layer.forward = functools.partial(self._run, layer, step)
        try:
            yield
        finally:
            for layer, _ in layers:
                del layer.forward  # back to that of its class

    def _run(self, layer: Any, step: StepLayer, *args: Any, **inputs: Any) -> torch.Tensor:
        inputs = {name: step if value is self._cache else value for name, value in inputs.items()}
        # PyTorch counts the compilations of a function, so it must not be a wrapper that all kinds of layers share.
        forward = _compiled(inspect.unwrap(type(layer).forward))
        return forward(layer, *args, step_layer=step, **inputs)


@functools.cache
def _compiled(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The forward of a kind of decoder layer, compiled when it first runs."""
    return torch.compile(forward, backend=_inductor, fullgraph=True, dynamic=False)


def _inductor(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """Inductor's compilation of a graph whose products of one row and no large matrix have become sums."""
    for node in graph.graph.find_nodes(op="call_function", target=torch._C._nn.linear):
        elements = node.args[1].meta["example_value"].numel()
        if node.meta["example_value"].shape[:-1].numel() == 1 and elements <= SUMMED_ELEMENTS:
            node.target = row_times
    graph.recompile()
    # Told to try tiles out, inductor would make sums of all products with one row.
    kept = {call: made for call, made in select_decomp_table().items() if call is not torch.ops.aten.mm.default}
    with warnings.catch_warnings():  # they would stand in the middle of the answer
        warnings.simplefilter("ignore")
        return compile_fx(graph, inputs, config_patches=_OPTIONS, decompositions=kept)


def row_times(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear` as a sum."""
    # A stride makes inductor keep the row, where it would compute it again for every few rows of the matrix.
    row = input.as_strided(input.shape, input.stride()).unsqueeze(-2)
    product = (row * weight).sum(dim=-1)
    return product if bias is None else product + bias
