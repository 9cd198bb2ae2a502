"""One policy on one batch of prompts: what it costs and how near it stays to full precision."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch

from wq_cli import decoding, device, engine
from wq_cli.results import BenchRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wq_cli.config import Generation, Settings
    from wq_cli.models.base import Prompt, VideoModel
    from wq_cli.search import Search


# Timed runs of a policy, as many as begin within this time of its warm-up.
_MOST_RUNS, _ENOUGH_SECONDS = 5, 20.0


@dataclass(frozen=True)
class Measurement:
    """A row of the table and what the next policies are compared with.

    Attributes:
        row: The figures.
        answer: Greedy continuation through this policy's cache, int64 [B, T]; end-of-text is ignored.
        log_probs: Of the T tokens that follow question and answer, float32 [B, T, vocabulary].
    """

    row: BenchRow
    answer: torch.Tensor | None
    log_probs: torch.Tensor | None


def measure(
    model: VideoModel,
    prompts: list[Prompt],
    settings: Settings,
    fidelity_tokens: int,
    reference: Measurement | None,
    sensitivity: Sequence[float] | None = None,
) -> Measurement:
    """Run a policy cold, then timed some times over, then through the packed cache.

    Args:
        model: The adapter.
        prompts: One per row of the batch.
        settings: With the policy's name; `generation.max_new_tokens` tokens are decoded.
        fidelity_tokens: T, tokens of the reference's answer to compare over; 0 for none.
        reference: The full-precision measurement; None makes this one the reference.
        sensitivity: Calibrated s_i of every layer, or None.
    """
    row = timed(
        settings.quantization.policy,
        len(prompts),
        model.device,
        lambda: _generate(model, prompts, settings, sensitivity),
    )
    if not fidelity_tokens:
        return Measurement(row, None, None)
    answer, log_probs = _through_cache(model, prompts, settings, fidelity_tokens, reference, sensitivity)
    kl, agreement = 0.0, 1.0
    if reference is not None and reference.log_probs is not None:
        kl, agreement = fidelity(reference.log_probs, log_probs)
    return Measurement(replace(row, kl_to_full=kl, greedy_agreement=agreement), answer, log_probs)


@dataclass(frozen=True)
class Run:
    """One prefill and decode; the time per token is the median of its steps. See `BenchRow`."""

    effective_bits: float
    kv_bytes: int
    kv_bytes_full: int
    search_ms: float | None
    seal_ms: float | None
    first_token_ms: float
    decode_ms_per_token: float
    compile_ms: float | None = None
    compile_obstacle: str | None = None


def timed(name: str, batch: int, where: torch.device, generate: Callable[[], Run]) -> BenchRow:
    """Times and memory of a cold run and some warm ones, fidelity left open.

    Args:
        name: Of the row.
        batch: Rows of the batch.
        where: The device that the model is on.
        generate: Makes a run.
    """
    started = time.perf_counter()
    cold = generate()
    warmup_ms = (time.perf_counter() - started) * 1e3

    device.reset_peak(where)
    runs = [generate()]
    while len(runs) < _MOST_RUNS and time.perf_counter() - started < _ENOUGH_SECONDS:
        runs.append(generate())
    per_token = [run.decode_ms_per_token for run in runs]
    first_token = [run.first_token_ms for run in runs]
    return BenchRow(
        policy=name,
        effective_bits=runs[0].effective_bits,
        kv_bytes=runs[0].kv_bytes,
        kv_bytes_full=runs[0].kv_bytes_full,
        peak_bytes=device.peak_bytes(where),
        search_ms=_median(run.search_ms for run in runs),
        seal_ms=_median(run.seal_ms for run in runs),
        first_token_ms=median(first_token),
        first_token_ms_range=(min(first_token), max(first_token)),
        decode_ms_per_token=median(per_token),
        decode_ms_per_token_range=(min(per_token), max(per_token)),
        tokens_per_second=batch * 1e3 / median(per_token),
        runs=len(runs),
        kl_to_full=None,
        greedy_agreement=None,
        warmup_ms=warmup_ms,
        compile_ms=cold.compile_ms,
        compile_obstacle=cold.compile_obstacle,
    )


def _median(times: Iterable[float | None]) -> float | None:
    """Of the times that were taken."""
    taken = [time for time in times if time is not None]
    return median(taken) if taken else None


def fidelity(full: torch.Tensor, other: torch.Tensor) -> tuple[float, float]:
    """(mean KL(full || other) in nats, share of positions with the same most likely token).

    Args:
        full, other: Log-probabilities, [B, T, vocabulary].
    """
    full, other = full.double(), other.double()
    kl = (full.exp() * (full - other)).sum(dim=-1).mean()
    same = (full.argmax(dim=-1) == other.argmax(dim=-1)).double().mean()
    return max(float(kl), 0.0), float(same)


def _prefill(
    model: VideoModel,
    prompts: list[Prompt],
    settings: Settings,
    sensitivity: Sequence[float] | None,
    until_visual_end: bool = False,
) -> tuple[engine.Prefilled, Search]:
    request = engine.prepare(
        model,
        prompts,
        settings.quantization,
        room=settings.generation.max_new_tokens,
        sensitivity=sensitivity,
        until_visual_end=until_visual_end,
    )
    return engine.prefill(model, request), request.found


def _generate(model: VideoModel, prompts: list[Prompt], settings: Settings, sensitivity: Sequence[float] | None) -> Run:
    """Question in the prompt as usual."""
    state, found = _prefill(model, prompts, settings, sensitivity)
    marks = []
    for _ in decoding.decode(model, state, settings.generation, stop_at_eos=False):
        marks.append(time.perf_counter())
    return Run(
        effective_bits=state.cache.visual_bits,
        kv_bytes=state.cache.nbytes,
        kv_bytes_full=state.cache.full_nbytes,
        search_ms=found.ms,
        seal_ms=state.seal_ms,
        first_token_ms=state.first_token_ms,
        decode_ms_per_token=median(1e3 * step for step in np.diff(marks).tolist()),
        compile_ms=state.compiled.compile_ms if state.compiled else None,
        compile_obstacle=state.compiled.obstacle if state.compiled else None,
    )


def _through_cache(
    model: VideoModel,
    prompts: list[Prompt],
    settings: Settings,
    tokens: int,
    reference: Measurement | None,
    sensitivity: Sequence[float] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Question and the reference's answer through the packed cache.

    Returns:
        The answer, int64 [B, T], and the log-probabilities at its T positions, [B, T, vocabulary].
    """
    if reference is not None and reference.answer is not None:
        answer = reference.answer
    else:
        state, _ = _prefill(model, prompts, settings, sensitivity, until_visual_end=True)
        engine.ask_through_cache(model, state, prompts)
        steps = decoding.decode(model, state, _length(settings, tokens), stop_at_eos=False)
        answer = torch.stack(list(steps), dim=1).to(model.device)
    state, _ = _prefill(model, prompts, settings, sensitivity, until_visual_end=True)
    engine.ask_through_cache(model, state, prompts)
    return answer, forced(model, state, answer)


def forced(model: VideoModel, state: engine.Prefilled, answer: torch.Tensor) -> torch.Tensor:
    """Log-probabilities at each position of a given answer, [B, T] to [B, T, vocabulary]; T - 1 tokens are run."""
    logits = [state.logits[:, None]]
    if answer.shape[1] > 1:
        with torch.inference_mode():
            embeds = model.embed(answer[:, :-1])
        logits.append(engine.extend(model, state, embeds, last_only=False))
    return torch.cat(logits, dim=1).log_softmax(dim=-1)


def _length(settings: Settings, tokens: int) -> Generation:
    return replace(settings.generation, max_new_tokens=tokens, temperature=0.0)
