"""Whole steps over transformers' own caches, with the model's own attention: what `wq bench --peers` adds.

Each row is made of the same prompts as the policies' rows, in the same run.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli import device
from wq_cli.bench.measure import Measurement, Run, fidelity, timed
from wq_cli.engine import Batch, after_video, run_decoder
from wq_cli.errors import first_line
from wq_cli.models.sizing import kv_bytes_per_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from wq_cli.models.base import Prompt, VideoModel
    from wq_cli.results import BenchRow

# Of the quantized caches: transformers' defaults.
GROUP, RESIDUAL_TOKENS = 64, 128
# A static cache without a mask attends over its empty places too. Here they are as many as the steps to come, and a
# mask would cost it the flash kernel: this is its fastest step.
UNMASKED = {"full_attention": None}


@dataclass(frozen=True)
class Peer:
    """One of transformers' caches.

    Attributes:
        name: In the table.
        make: An empty cache, from the language model's config and the tokens it must hold.
        package: What it needs beside transformers.
        graph: Whether its steps are one CUDA graph.
    """

    name: str
    make: Callable[[Any, int], Any]
    package: str | None = None
    graph: bool = False

    def obstacle(self, model: VideoModel) -> str | None:
        """Why it cannot run here; None when it can."""
        if self.graph and model.device.type != "cuda":
            return f"CUDA graphs need an NVIDIA GPU, the model is on {model.device.type}"
        try:
            if self.package:
                version(self.package)
        except PackageNotFoundError:
            return f"the package `{self.package}` is not installed"
        return None


def _dynamic(config: Any, tokens: int) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=config)


def _static(config: Any, tokens: int) -> Any:
    from transformers import StaticCache

    return StaticCache(config=config, max_cache_len=tokens)


def _quantized(backend: str, bits: int, axis: int) -> Callable[[Any, int], Any]:
    def make(config: Any, tokens: int) -> Any:
        from transformers import QuantizedCache

        return QuantizedCache(
            backend=backend,
            config=config,
            nbits=bits,
            axis_key=axis,
            axis_value=axis,
            q_group_size=GROUP,
            residual_length=RESIDUAL_TOKENS,
        )

    return make


PEERS = (
    Peer("hf dynamic", _dynamic),
    Peer("hf static", _static, graph=True),
    # Groups along the channels of a token: the axis of each library that means it.
    Peer("hf hqq4", _quantized("hqq", 4, 1), "hqq"),
    Peer("hf hqq2", _quantized("hqq", 2, 1), "hqq"),
    Peer("hf quanto4", _quantized("quanto", 4, 0), "optimum-quanto"),
    Peer("hf quanto2", _quantized("quanto", 2, 0), "optimum-quanto"),
)


def rows(
    model: VideoModel,
    prompts: list[Prompt],
    *,
    decode_tokens: int,
    reference: Measurement,
    on_peer: Callable[[str], None],
) -> tuple[list[BenchRow], list[str]]:
    """Measure every peer that runs here.

    Args:
        model: The adapter; it runs the attention it was loaded with.
        prompts: One per row of the batch, equally long.
        decode_tokens: Steps timed after the first token.
        reference: Our full-precision measurement; fidelity is compared where it has an answer.
        on_peer: Called with the name of each.

    Returns:
        Their rows, and one sentence for each that is left out.
    """
    made, left_out = [], []
    for peer in PEERS:
        reason = peer.obstacle(model)
        if reason is None:
            on_peer(peer.name)
            try:
                made.append(_row(peer, model, prompts, decode_tokens, reference))
            except Exception as error:  # a library that fails must not cost the other rows
                reason = first_line(error)
        if reason is not None:
            left_out.append(f"{peer.name} is left out: {reason}")
    return made, left_out


def packages() -> dict[str, str]:
    """Versions of the libraries that peers are made with."""
    found = {}
    for name in dict.fromkeys(peer.package for peer in PEERS if peer.package):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _row(peer: Peer, model: VideoModel, prompts: list[Prompt], decode_tokens: int, reference: Measurement) -> BenchRow:
    row = timed(peer.name, len(prompts), model.device, lambda: _generate(peer, model, prompts, decode_tokens))
    row = replace(row, is_peer=True)
    if reference.answer is None or reference.log_probs is None:
        return row
    log_probs = _through_cache(peer, model, prompts, reference.answer)
    kl, agreement = fidelity(reference.log_probs, log_probs)
    return replace(row, kl_to_full=kl, greedy_agreement=agreement)


@torch.inference_mode()
def _generate(peer: Peer, model: VideoModel, prompts: list[Prompt], steps: int) -> Run:
    """Prefill and greedy steps."""
    batch = Batch.of(prompts, window=1)
    length = batch.embeds.shape[1]
    cache = peer.make(model.text_config, length + steps)
    prefilling = device.Stopwatch(model.device)
    with model.lock:
        with prefilling():
            token = _prefill(model, batch, cache)[:, -1].argmax(dim=-1)
        first_token_ms = prefilling.ms
        step = _Step(model, cache, token, batch.next_position)
        marks = [time.perf_counter()]
        for _ in _repeated(step, steps, peer.graph):
            marks.append(time.perf_counter())
    nbytes = sum(tensor.nbytes for tensor in _tensors([vars(layer) for layer in cache.layers]))
    full_bytes = len(prompts) * (length + steps) * kv_bytes_per_token(model.text_config, model.dtype)
    return Run(
        effective_bits=8 * model.dtype.itemsize * nbytes / full_bytes,
        kv_bytes=nbytes,
        kv_bytes_full=full_bytes,
        search_ms=None,
        seal_ms=None,
        first_token_ms=first_token_ms,
        decode_ms_per_token=median(1e3 * gap for gap in np.diff(marks).tolist()),
    )


def _prefill(model: VideoModel, batch: Batch, cache: Any) -> torch.Tensor:
    """The prompt through the decoder; logits of its last token, [B, 1, vocabulary]."""
    deepstack = {} if batch.deepstack is None else model.deepstack_inputs(batch.visual_mask, batch.deepstack)
    hidden = run_decoder(model, batch.embeds, batch.positions, cache, batch.padding, **deepstack)
    return model.logits(hidden[:, -1:])


class _Step:
    """One greedy token more for every row; all that changes lies in tensors that stay where they are."""

    def __init__(self, model: VideoModel, cache: Any, token: torch.Tensor, position: torch.Tensor) -> None:
        self._model, self._cache = model, cache
        self.token, self._position = token.clone(), position.clone()

    def __call__(self, mask: Any = None) -> None:
        embeds = self._model.embed(self.token)[:, None]
        hidden = run_decoder(self._model, embeds, self._position[:, None], self._cache, mask)
        self.token.copy_(self._model.logits(hidden[:, -1]).argmax(dim=-1))
        self._position += 1


def _repeated(step: _Step, times: int, as_graph: bool) -> Iterator[torch.Tensor]:
    """Tokens of so many steps on the host, int64 [B] each.

    The step is a CUDA graph from the second time on, which the first one warms up. As in `decoding.decode` a replay is
    launched before the token that it starts from is waited for.
    """
    run: Callable[[], None] = step
    arriving: deque[device.HostCopy] = deque()
    for index in range(times):
        if as_graph and index == 1:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step(UNMASKED)
            run = graph.replay
        run()
        arriving.append(device.HostCopy(step.token))
        if run is step or len(arriving) > 1:
            yield arriving.popleft().get()
    for last in arriving:
        yield last.get()


@torch.inference_mode()
def _through_cache(peer: Peer, model: VideoModel, prompts: list[Prompt], answer: torch.Tensor) -> torch.Tensor:
    """The video into the cache, then question and answer through it: log-probabilities of the answer, [B, T, V]."""
    batch = Batch.of(prompts, window=1, until_visual_end=True)
    question, positions = after_video(prompts)
    given = answer[:, :-1]
    embeds = torch.cat([question, model.embed(given).to(question)], dim=1)
    later = positions[..., -1:] + 1 + torch.arange(given.shape[1], device=positions.device)
    cache = peer.make(model.text_config, batch.embeds.shape[1] + embeds.shape[1])
    with model.lock:
        _prefill(model, batch, cache)
        hidden = run_decoder(model, embeds, torch.cat([positions, later], dim=-1), cache)
    return model.logits(hidden[:, -answer.shape[1] :]).log_softmax(dim=-1)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every plain tensor inside, those that libraries wrap included."""
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            names, _ = value.__tensor_flatten__()
            yield from _tensors([getattr(value, name) for name in names])
        else:
            yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
