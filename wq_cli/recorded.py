"""One prefill for many policies: what each layer made of a video is kept, and every policy seals a copy of it.

A policy sees what it would see in `engine.prefill`, at a fraction of the time where many are compared, for the memory
of one cache at full precision and of what the policies look at beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from wq_cli import engine
from wq_cli.cache import WindowCache
from wq_cli.chunks import token_chunks
from wq_cli.codecs import ChannelInWindow
from wq_cli.device import Stopwatch, memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wq_cli.config import Quantization
    from wq_cli.models.base import Prompt, VideoModel
    from wq_cli.policies.base import Policy

# Of the free memory, the rest of which is for the caches that are sealed and for the model's own activations.
MOST_OF_FREE_MEMORY = 0.5


@dataclass(frozen=True)
class Kept:
    """What of each layer is kept besides its keys and values.

    Attributes:
        queries: Its queries, [1, Hq, L, D].
        stream: The residual stream that left it, [1, L, D].
    """

    queries: bool = True
    stream: bool = True

    @classmethod
    def for_policies(cls, policies: Iterable[Policy]) -> Kept:
        """What some policies look at."""
        policies = list(policies)
        return cls(any(p.needs_queries for p in policies), any(p.needs_stream for p in policies))

    def nbytes(self, model: VideoModel, tokens: int) -> int:
        """Bytes of a recording of so many tokens, keys and values included."""
        config = model.text_config
        heads, dim = engine.kv_shape(config)
        per_token = 2 * heads * dim + self.queries * config.num_attention_heads * dim + self.stream * config.hidden_size
        return int(config.num_hidden_layers * tokens * per_token * model.dtype.itemsize)


class Recording:
    """The prefill of one prompt up to its last visual token, and of one question after the other behind it.

    Args:
        model: The adapter.
        prompt: With any of the questions.
        sensitivity: Calibrated s_i of every layer; None measures them.
        kept: What the policies to come look at.

    Attributes:
        sensitivity: s_i of every layer (eq 9), over that part of the prompt where they were measured.
    """

    def __init__(
        self, model: VideoModel, prompt: Prompt, sensitivity: Sequence[float] | None = None, kept: Kept | None = None
    ) -> None:
        self.model = model
        self._kept = kept or Kept()
        batch = engine.Batch.of([prompt], 1, until_visual_end=True)
        self._begin, self._question = batch.embeds, batch.embeds[:, :0]
        self._queries: dict[int, torch.Tensor] = {}
        self._streams: dict[int, torch.Tensor] = {}
        on_queries = self._on_queries if self._kept.queries else None
        self._cache = WindowCache(model.text_config, batch.visual, ChannelInWindow(1), on_queries=on_queries)
        self.sensitivity = list(sensitivity or ())
        added = {} if batch.deepstack is None else model.deepstack_inputs(batch.visual_mask, batch.deepstack)
        self._run(batch.embeds, batch.positions, measure=not self.sensitivity, **added)

    @classmethod
    def if_it_fits(
        cls, model: VideoModel, prompt: Prompt, sensitivity: Sequence[float] | None, kept: Kept
    ) -> Recording | None:
        """A recording, or None where it would take more than half of the device's free memory."""
        free, _ = memory(model.device)
        if free is not None and kept.nbytes(model, len(prompt.embeds)) > MOST_OF_FREE_MEMORY * free:
            return None
        return cls(model, prompt, sensitivity, kept)

    def begins(self, prompt: Prompt) -> bool:
        """Whether a prompt is the recorded one up to its last visual token."""
        return torch.equal(prompt.embeds[None, : prompt.visual_end], self._begin)

    def sealed(
        self, prompt: Prompt, settings: Quantization, room: int, policy: Policy | None = None
    ) -> engine.Prefilled:
        """A cache that a policy has sealed, and the question asked through it.

        Args:
            prompt: Another question behind the same visual tokens.
            settings: Names the policy.
            room: Tokens to come.
            policy: Instead of the one that `settings` name.
        """
        request = engine.prepare(
            self.model,
            [prompt],
            settings,
            room=room,
            sensitivity=self.sensitivity,
            until_visual_end=True,
            policy=policy,
        )
        state = self.prefill(request)
        engine.ask_through_cache(self.model, state, [prompt])
        return state

    @torch.inference_mode()
    def prefill(self, request: engine.Request) -> engine.Prefilled:
        """What `engine.prefill` makes of a request, but for its logits and times: the cache holds the video alone.

        Args:
            request: Of one prompt that begins as the recorded one, until the last visual token.
        """
        policy, begin = request.policy, self._begin
        state = engine.Prefilled(request.cache, begin.new_empty(0), request.batch.next_position)
        sealing, length = Stopwatch(begin.device), self._reach(request)
        for index, (empty, source) in enumerate(zip(request.cache.layers, self._cache.layers, strict=True)):
            keys, values = (x[:, :, :length] for x in source.run)
            empty.update(keys, values)
            if policy.needs_queries:
                request.found.timed(policy.observe_queries)(index, self._queries[index][:, :, :length], keys)
            s = None
            if request.sensitivity or policy.needs_sensitivity:
                s = (request.sensitivity or self.sensitivity)[index]
            engine.seal_layer(request, state, index, s, sealing)
            if policy.needs_stream:
                policy.observe(index, self._streams[index][:, :length])
        request.cache.crop(begin.shape[1] - length)
        state.seal_ms = sealing.ms
        return state

    def _reach(self, request: engine.Request) -> int:
        """Tokens that the prefill of a request runs over, all of them recorded: a question is run once for all rows."""
        begin = self._begin.shape[1]
        question = request.seen.embeds[:, begin:]
        if question.shape[1] and not torch.equal(question, self._question):
            self._cache.crop(-self._question.shape[1])
            for kept, dim in ((self._queries, 2), (self._streams, 1)):
                kept.update({layer: x.narrow(dim, 0, begin) for layer, x in kept.items()})
            self._run(question, request.seen.positions[..., begin:])
            self._question = question
        return begin + question.shape[1]

    def _on_queries(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        _extend(self._queries, layer, queries, dim=2)

    def _keep(self, layer: int, stream: torch.Tensor) -> None:
        if self._kept.stream:
            _extend(self._streams, layer, stream, dim=1)

    @torch.inference_mode()
    def _run(self, embeds: torch.Tensor, positions: torch.Tensor, measure: bool = False, **added: Any) -> None:
        """Run tokens behind those so far and record them."""

        def measured(layer: int, s: float | None) -> None:
            if s is not None:
                self.sensitivity.append(s)

        hooks = engine.after_each_layer(self.model, None, measure, None, measured, self._keep)
        with engine.windowed_attention(self.model), token_chunks(self.model.decoder), hooks:
            engine.run_decoder(self.model, embeds, positions, self._cache, **added)


def _extend(kept: dict[int, torch.Tensor], layer: int, new: torch.Tensor, dim: int) -> None:
    """Put what a layer made of new tokens behind what it made of those before."""
    kept[layer] = torch.cat([kept[layer], new], dim=dim) if layer in kept else new
