"""Prefill, seal, decode: the stages of an answer in order, over any adapter of `wq_cli.models`.

Nothing here knows a file, a terminal or a policy by name. Letters: B rows of a batch, L prompt tokens, W windows.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from wq_cli import offline, policies, windows
from wq_cli.attention import ATTENTION
from wq_cli.cache import GROWTH_TOKENS, WindowCache, budget_for
from wq_cli.chunks import token_chunks
from wq_cli.device import HostCopy, Stopwatch
from wq_cli.placement import VisualTokens
from wq_cli.policies.options import name_of
from wq_cli.search import Search, search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wq_cli.compiled import CompiledDecoder
    from wq_cli.config import Quantization
    from wq_cli.models.base import Prompt, VideoModel
    from wq_cli.policies.base import LayerPlan, Policy


@dataclass
class Prefilled:
    """A sealed cache and what is needed to go on from it.

    Attributes:
        cache: All layers sealed.
        logits: Of the last prompt token, float32 [B, vocabulary].
        position: Rotary position of the next token in each row, int64 [B].
        plans, sensitivity: Per layer; a sensitivity is None when the policy did not ask for it.
        first_token_ms: Whole prefill, sealing included, until the logits are there.
        seal_ms: Sealing alone.
        graph: How the steps of the answer ran, once they did.
        compiled: Their decoder, if it was asked to compile its layers.
    """

    cache: WindowCache
    logits: torch.Tensor
    position: torch.Tensor
    plans: list[LayerPlan] = field(default_factory=list)
    sensitivity: list[float | None] = field(default_factory=list)
    first_token_ms: float = 0.0
    seal_ms: float = 0.0
    graph: str | None = None
    compiled: CompiledDecoder | None = None


@dataclass(frozen=True)
class Batch:
    """Prompts side by side, padded on the left.

    Attributes:
        embeds: [B, L, D].
        positions: Rotary position of each token, int64 [B, L] or [3, B, L].
        padding: True for real tokens, [B, L]; None when all rows are equally long.
        visual: Where the visual tokens are.
        visual_mask: The same as bool [B, L].
        questions: Embeddings that windows are scored against, per row [N, D].
        deepstack: Added to the visual tokens after the first layers, [layers, B * M, D]; None for nothing.
        left_out: Prompt tokens that the cache is still to hold, of the longest row.
    """

    embeds: torch.Tensor
    positions: torch.Tensor
    padding: torch.Tensor | None
    visual: VisualTokens
    visual_mask: torch.Tensor
    questions: list[torch.Tensor]
    deepstack: torch.Tensor | None = None
    left_out: int = 0

    @classmethod
    def of(cls, prompts: list[Prompt], window: int, *, until_visual_end: bool = False) -> Batch:
        """Stack prompts.

        Args:
            prompts: One per row, with equally many visual tokens.
            window: S.
            until_visual_end: Leave out what comes after the last visual token.
        """
        ends = [p.visual_end if until_visual_end else len(p.embeds) for p in prompts]
        length = max(ends)
        device = prompts[0].embeds.device
        embeds = prompts[0].embeds[None, :length]  # a prompt alone is not copied
        if len(prompts) > 1:
            rows = zip(prompts, ends, strict=True)
            embeds = torch.stack([pad(prompt.embeds[:end], (0, 0, length - end, 0)) for prompt, end in rows])
        components = prompts[0].positions.shape[:-1]
        positions = prompts[0].positions.new_zeros(*components, len(prompts), length)
        visual = torch.zeros(len(prompts), length, dtype=torch.bool, device=device)
        real = torch.zeros_like(visual)
        for row, (prompt, end) in enumerate(zip(prompts, ends, strict=True)):
            positions[..., row, length - end :] = prompt.positions[..., :end]
            visual[row, length - end :] = prompt.visual_mask[:end]
            real[row, length - end :] = True
        padding = None if min(ends) == length else real
        tokens = VisualTokens.from_mask(visual, window, padding)
        added = [p.deepstack for p in prompts if p.deepstack is not None]
        deepstack = torch.cat(added, dim=1) if added else None
        left_out = max(len(p.embeds) - end for p, end in zip(prompts, ends, strict=True))
        questions = [p.question for p in prompts]
        return cls(embeds, positions, padding, tokens, visual, questions, deepstack, left_out)

    @property
    def next_position(self) -> torch.Tensor:
        """Rotary position after each row, int64 [B]."""
        return _next_position(self.positions)


def _next_position(positions: torch.Tensor) -> torch.Tensor:
    """[B, L] or [3, B, L] to [B]: transformers counts on from the last token, whose components are equal in text."""
    return positions[..., -1].reshape(-1, positions.shape[-2]).amax(dim=0) + 1


@contextmanager
def windowed_attention(model: VideoModel) -> Iterator[None]:
    """The decoder runs our attention inside this context, its own again after it, whatever happens.

    One thread at a time: attention and hooks belong to the model, not to a run.
    """
    config = model.text_config
    with model.lock:
        before = config._attn_implementation
        config._attn_implementation = ATTENTION
        try:
            yield
        finally:
            config._attn_implementation = before


def new_cache(model: VideoModel, batch: Batch, policy: Policy, found: Search, room: int) -> WindowCache:
    """An empty cache for a batch, with room for the rest of its prompts and `room` more tokens.

    What the policy looks at while the cache is filled is time of the search.
    """
    settings = policy.settings
    dtype = None if settings.kv_dtype == "auto" else getattr(torch, settings.kv_dtype)
    room += batch.left_out
    # A budget in bytes holds to the end of the answer, so that its room is taken at once; else it comes as it is used.
    if settings.kv_memory_bytes is None:
        room = min(room, GROWTH_TOKENS)
    return WindowCache(
        model.text_config,
        batch.visual,
        policy.coding(),
        room=room,
        reorder=settings.reorder,
        dtype=dtype,
        on_queries=found.timed(policy.observe_queries) if policy.needs_queries else None,
    )


@dataclass(frozen=True)
class Request:
    """Prompts with all that is decided about them before the prefill.

    Attributes:
        batch: The prompts, as far as the cache is to hold them.
        seen: What the prefill runs over: the same, or with the question behind it, which is then forgotten.
        policy: Asked for each layer's plan, its budget fitted.
        found: Scores of the windows.
        cache: Empty.
        sensitivity: Calibrated s_i of every layer; None measures them in the prefill, if the policy needs them.
    """

    batch: Batch
    seen: Batch
    policy: Policy
    found: Search
    cache: WindowCache
    sensitivity: Sequence[float] | None

    def plan(self, layer: int, s: float | None) -> LayerPlan:
        """The policy's plan of a layer that the cache holds, by its s_i; of all layers at once if that can be.

        What waits for the device is no time of the search.
        """
        if self.policy.plans_ahead(self.sensitivity):
            return self._plans[layer]
        relevance = self.found.relevance
        self.policy.wait(layer)
        with self.found.on_host():
            return self.policy.plan_layer(layer, relevance, s)

    @functools.cached_property
    def _plans(self) -> list[LayerPlan]:
        known: Sequence[float | None] = self.sensitivity or [None] * len(self.cache.layers)
        relevance = self.found.relevance
        with self.found.on_host():
            return [self.policy.plan_layer(layer, relevance, s) for layer, s in enumerate(known)]


def prepare(
    model: VideoModel,
    prompts: list[Prompt],
    settings: Quantization,
    *,
    room: int,
    sensitivity: Sequence[float] | None = None,
    until_visual_end: bool = False,
    policy: Policy | None = None,
) -> Request:
    """Stack prompts, score their windows and make an empty cache.

    Args:
        model: The adapter.
        prompts: One per row.
        settings: Policy, windows, budget.
        room: Tokens that will follow the prompts.
        sensitivity: See `Request`.
        until_visual_end: Leave out what comes after the last visual token, to be asked through the cache.
        policy: Instead of the one that `settings` name.

    Raises:
        UsageError: No such policy, or a budget for one that has nothing to choose.
        BudgetError: The budget is too small.
    """
    if policy is None:
        policy = policies.create(settings)
        name, layers = name_of(settings.policy), model.text_config.num_hidden_layers
        if policy.needs_numbers:
            policy.told(offline.read(model.profile, name, layers))
        elif policy.takes_numbers and (numbers := offline.find(model.profile, name, layers)) is not None:
            policy.told(numbers)
    settings = policy.settings
    batch = Batch.of(prompts, settings.window, until_visual_end=until_visual_end)
    found = search(batch, settings, policy)
    policy.begin(batch.visual, model.decoder)
    policy.place(batch.positions)
    cache = new_cache(model, batch, policy, found, room)
    bits = _budget_bits(model, cache, settings)
    if bits is not None:
        full_bits = 8 * (cache.storage.dtype or model.dtype).itemsize
        budget = budget_for(batch.visual, policy, len(cache.layers), full_bits, bits)
        relevance = found.relevance
        with found.on_host():
            policy.fit_budget(relevance, sensitivity, budget)
    seen = Batch.of(prompts, settings.window) if until_visual_end and policy.needs_question else batch
    return Request(batch, seen, policy, found, cache, sensitivity)


def _budget_bits(model: VideoModel, cache: WindowCache, settings: Quantization) -> float | None:
    """`--bits`, or what `--kv-memory` leaves per visual element; None without a budget."""
    if settings.kv_memory_bytes is None:
        return settings.bits
    visual, room, layers = cache.visual, cache.storage.room, len(cache.layers)
    rows, count = visual.positions.shape
    heads, dim = kv_shape(model.text_config)
    per_token = 2 * layers * rows * heads * dim
    others = (visual.text.shape[1] + room) * per_token * (cache.storage.dtype or model.dtype).itemsize
    if visual.padding is not None:  # the mask of the run, at its longest
        others += layers * rows * (visual.length + room)
    return 8 * (settings.kv_memory_bytes - others) / (per_token * max(count, 1))


def kv_shape(text_config: Any) -> tuple[int, int]:
    """(KV heads, head size) of a language model."""
    dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // text_config.num_attention_heads
    return text_config.num_key_value_heads, dim


@torch.inference_mode()
def prefill(model: VideoModel, request: Request, on_layer: Callable[[int], None] = lambda layer: None) -> Prefilled:
    """Run the prompt at full precision and seal each layer as soon as it ran: one layer at a time holds its keys and
    values at full precision.

    Args:
        model: The adapter.
        request: From `prepare`; its cache is filled.
        on_layer: Called with the index of each sealed layer.
    """
    batch, policy = request.seen, request.policy
    device = batch.embeds.device
    total, sealing = Stopwatch(device), Stopwatch(device)
    result = Prefilled(request.cache, torch.empty(0), request.batch.next_position)
    deepstack = {} if batch.deepstack is None else model.deepstack_inputs(batch.visual_mask, batch.deepstack)

    def seal(layer: int, s: float | None) -> None:
        seal_layer(request, result, layer, s, sealing)
        on_layer(layer)

    measure = policy.needs_sensitivity and request.sensitivity is None
    hooks = after_each_layer(model, batch.padding, measure, request.sensitivity, seal, policy.observe)
    with total(), windowed_attention(model), token_chunks(model.decoder), hooks:
        hidden = run_decoder(model, batch.embeds, batch.positions, request.cache, batch.padding, **deepstack)
        result.logits = model.logits(hidden[:, -1])
    if batch is not request.batch:
        request.cache.crop(request.batch.embeds.shape[1] - batch.embeds.shape[1])
    result.first_token_ms, result.seal_ms = total.ms, sealing.ms
    return result


def seal_layer(request: Request, state: Prefilled, layer: int, s: float | None, sealing: Stopwatch) -> None:
    """Ask the policy for the plan of a layer that the cache holds, and seal it.

    Args:
        request: Its policy is asked and its cache sealed.
        state: Gets the plan.
        layer: Index of the layer.
        s: Its s_i, or None when not needed.
        sealing: Times the sealing alone.
    """
    plan = request.plan(layer, s)
    with sealing():
        request.cache.seal(layer, plan)
    state.plans.append(plan)
    state.sensitivity.append(s)


@contextmanager
def after_each_layer(
    model: VideoModel,
    padding: torch.Tensor | None,
    measure: bool,
    calibrated: Sequence[float] | None,
    then: Callable[[int, float | None], None],
    observe: Callable[[int, torch.Tensor], None],
) -> Iterator[None]:
    """Hooks on the decoder layers: measure eq 9 if asked to, then call `then(layer, s_i)` and `observe(layer, stream)`.

    They are always removed.
    """
    before: dict[int, torch.Tensor] = {}
    measured: dict[int, HostCopy] = {}
    hooks = []

    def stream_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        stream: torch.Tensor = args[0] if args else kwargs["hidden_states"]
        return stream

    def watch(index: int, layer: Any) -> None:
        def enter(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            before[index] = stream_of(args, kwargs)

        def after_attention(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            after = stream_of(args, kwargs)  # a layer on another device brings its stream there itself
            mask = None if padding is None else padding.to(after.device)
            measured[index] = HostCopy(windows.sensitivity(before.pop(index).to(after.device), after, mask))

        hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        # The last norm before the MLP; Gemma 3 has another one on what attention adds.
        norm = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
        hooks.append(norm.register_forward_pre_hook(after_attention, with_kwargs=True))

    def finish(index: int) -> Callable[..., None]:
        def leave(module: Any, args: Any, output: Any) -> None:
            if measure:  # on its way while the device runs the rest of the layer
                then(index, float(measured[index].get()))
            else:
                then(index, calibrated[index] if calibrated else None)
            observe(index, output[0] if isinstance(output, tuple) else output)

        return leave

    try:
        for index, layer in enumerate(model.decoder.layers):
            if measure:
                watch(index, layer)
            hooks.append(layer.register_forward_hook(finish(index)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


def run_decoder(
    model: VideoModel,
    embeds: torch.Tensor,
    positions: torch.Tensor,
    cache: WindowCache,
    padding: torch.Tensor | None = None,
    **inputs: Any,
) -> torch.Tensor:
    """One pass of the decoder, [B, T, D] to [B, T, D]; `inputs` are more arguments of its forward."""
    decoder_class: Any = type(model.decoder)
    output = model.decoder(
        inputs_embeds=embeds,
        position_ids=positions,
        attention_mask=padding,
        use_cache=True,
        **{_cache_argument(decoder_class): cache},
        **inputs,
    )
    hidden: torch.Tensor = output.last_hidden_state
    return hidden


@functools.cache
def _cache_argument(decoder_class: Any) -> str:
    """transformers renamed it between the versions that are supported."""
    return "cache" if "cache" in inspect.signature(decoder_class.forward).parameters else "past_key_values"


@torch.inference_mode()
def extend(
    model: VideoModel,
    state: Prefilled,
    embeds: torch.Tensor,
    last_only: bool = True,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run more tokens through the sealed cache, causal among themselves.

    Args:
        model: The adapter.
        state: Its cache and positions move on.
        embeds: [B, T, D].
        last_only: Logits of the last token alone.
        positions: Rotary positions, int64 [B, T] or [3, B, T]; None counts on from the state's.

    Returns:
        Float32 logits, [B, vocabulary] or [B, T, vocabulary].
    """
    if positions is None:
        positions = state.position[:, None] + torch.arange(embeds.shape[1], device=embeds.device)
    with windowed_attention(model):
        hidden = run_decoder(model, embeds, positions, state.cache)
    state.position = _next_position(positions)
    return model.logits(hidden[:, -1] if last_only else hidden)


def rewind(state: Prefilled, count: int) -> None:
    """Forget the last `count` tokens that `extend` ran, with positions that counted on.

    A question may be forgotten too: the next one brings its own positions.
    """
    state.cache.crop(-count)
    state.position = state.position - count


def ask_through_cache(model: VideoModel, state: Prefilled, prompts: list[Prompt]) -> None:
    """Run what follows the last visual token through the packed cache: the question after the cache.

    Raises:
        ValueError: Questions of different lengths.
    """
    embeds, positions = after_video(prompts)
    watch = Stopwatch(state.logits.device)
    with watch():
        state.logits = extend(model, state, embeds, positions=positions)
    state.position = torch.tensor([prompt.next_position for prompt in prompts], device=embeds.device)
    state.first_token_ms += watch.ms


def after_video(prompts: list[Prompt]) -> tuple[torch.Tensor, torch.Tensor]:
    """(embeddings [B, T, D], rotary positions [B, T] or [3, B, T]) of what follows the last visual token.

    Raises:
        ValueError: Questions of different lengths.
    """
    if len({len(prompt.embeds) - prompt.visual_end for prompt in prompts}) > 1:
        raise ValueError("questions of different lengths cannot go through one packed cache together")
    embeds = torch.stack([prompt.embeds[prompt.visual_end :] for prompt in prompts])
    return embeds, torch.stack([prompt.positions[..., prompt.visual_end :] for prompt in prompts], dim=-2)
