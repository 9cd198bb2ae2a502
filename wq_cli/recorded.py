"""One prefill for many policies: what each layer made of a text is kept, and every policy seals a copy of it.

A policy sees what it would see in `engine.prefill`, at a fraction of the time where many are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from wq_cli import engine
from wq_cli.cache import WindowCache
from wq_cli.codecs import ChannelInWindow

if TYPE_CHECKING:
    from wq_cli.config import Quantization
    from wq_cli.models.base import Prompt, VideoModel
    from wq_cli.policies.base import Policy


@dataclass
class _Layer:
    """What a layer made of the tokens so far: queries [1, Hq, L, D] and the stream that left it, [1, L, D]."""

    queries: torch.Tensor
    stream: torch.Tensor = field(default_factory=lambda: torch.empty(0))


class Recording:
    """The prefill of one prompt up to its last visual token, and of one question after the other behind it.

    Attributes:
        sensitivity: s_i of every layer (eq 9), over that part of the prompt.
    """

    def __init__(self, model: VideoModel, prompt: Prompt) -> None:
        self.model = model
        batch = engine.Batch.of([prompt], 1, until_visual_end=True)
        self._length = batch.embeds.shape[1]
        self._layers: dict[int, _Layer] = {}
        self._cache = WindowCache(model.text_config, batch.visual, ChannelInWindow(1), on_queries=self._on_queries)
        self.sensitivity: list[float] = []
        added = {} if batch.deepstack is None else model.deepstack_inputs(batch.visual_mask, batch.deepstack)
        self._run(batch.embeds, batch.positions, measure=True, **added)

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
        policy, question = request.policy, 0
        if policy.needs_question:
            embeds, positions = engine.after_video([prompt])
            question = embeds.shape[1]
            self._run(embeds, positions)
        state = engine.Prefilled(request.cache, torch.empty(0), request.batch.next_position)
        for index, (kept, source) in enumerate(zip(request.cache.layers, self._cache.layers, strict=True)):
            assert source.keys is not None and source.values is not None
            kept.update(source.keys, source.values)
            seen = self._layers[index]
            if policy.needs_queries:
                policy.observe_queries(index, seen.queries, source.keys)
            plan = policy.plan_layer(index, request.found.relevance, self.sensitivity[index])
            request.cache.seal(index, plan)
            policy.observe(index, seen.stream)
            state.plans.append(plan)
        request.cache.crop(-question)
        self._forget(question)
        engine.ask_through_cache(self.model, state, [prompt])
        return state

    def _on_queries(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        if layer in self._layers:
            queries = torch.cat([self._layers[layer].queries, queries], dim=2)
            self._layers[layer].queries = queries
        else:
            self._layers[layer] = _Layer(queries)

    def _keep(self, layer: int, stream: torch.Tensor) -> None:
        kept = self._layers[layer]
        kept.stream = torch.cat([kept.stream, stream], dim=1) if kept.stream.numel() else stream

    @torch.inference_mode()
    def _run(self, embeds: torch.Tensor, positions: torch.Tensor, measure: bool = False, **added: Any) -> None:
        """Run tokens behind those so far and record them."""

        def measured(layer: int, s: float | None) -> None:
            if s is not None:
                self.sensitivity.append(s)

        hooks = engine.after_each_layer(self.model, None, measure, None, measured, self._keep)
        with engine.windowed_attention(self.model), hooks:
            engine.run_decoder(self.model, embeds, positions, self._cache, **added)

    def _forget(self, tokens: int) -> None:
        """Back to the last visual token."""
        self._cache.crop(-tokens)
        for kept in self._layers.values():
            kept.queries, kept.stream = kept.queries[:, :, : self._length], kept.stream[:, : self._length]
