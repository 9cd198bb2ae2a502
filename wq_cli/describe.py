"""What a run was, as the dataclasses of `wq_cli.results`: tensors and plans in, plain numbers out."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from wq_cli.policies.base import FULL_PRECISION
from wq_cli.policies.options import name_of
from wq_cli.results import LayerResult, MemoryResult, ModelResult, PolicyResult, VideoResult, WindowResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wq_cli.config import Quantization
    from wq_cli.engine import Prefilled
    from wq_cli.models.base import Prompt, VideoModel, VisualFeatures
    from wq_cli.policies.base import LayerPlan, Policy
    from wq_cli.search import Search
    from wq_cli.video import Clip

# An answer that ends in a phrase of at most this many tokens, said this often, and this many tokens in all.
_PHRASE_TOKENS, _PHRASE_TIMES, _STUCK_TOKENS = 8, 4, 12
STUCK_NOTICE = (
    "the answer says the same over and over, as a wrong number type or chat template makes a model do, or too few bits "
    "(`--policy fp16` tells whether it is the bits)"
)
DEMO_NOTICE = (
    "this is the demo model: it knows nothing but the world of `wq scenes`, so what it makes of this video "
    "means little; for a real one `wq pull llava-onevision-0.5b` and `wq profiles use llava-onevision-0.5b`"
)


def windows(
    clip: Clip,
    visual: VisualFeatures,
    found: Search,
    plans: Sequence[LayerPlan],
    settings: Quantization,
) -> tuple[WindowResult, ...]:
    """Rows of the map for the first request of a batch, the tail last.

    Args:
        clip: The sampled frames.
        visual: Its tokens.
        found: Scores.
        plans: One per layer.
        settings: Those of the policy, with the window size.
    """
    size = settings.window
    count = len(visual.frames) // size
    last = len(clip.frames) - 1
    # Methods with rules of their own may quantize it all the same.
    widths = {int(bits[0]) for plan in plans for bits in (plan.key_bits, plan.value_bits) if count}
    first_is_fixed = settings.fixed_first_window and widths <= {FULL_PRECISION}
    rows = []
    for index in range(-(-len(visual.frames) // size)):
        tail = index >= count
        frames = visual.frames[index * size : (index + 1) * size]
        frames = frames[frames >= 0] if (frames >= 0).any() else np.array([last])
        last_frame = min(int(frames[-1]) + visual.frames_per_token - 1, last)
        rows.append(
            WindowResult(
                index=index,
                role="tail" if tail else "first" if index == 0 and first_is_fixed else "scored",
                tokens=min(size, len(visual.frames) - index * size),
                first_frame=int(frames[0]),
                last_frame=last_frame,
                start_seconds=float(clip.span_seconds[frames[0], 0]),
                end_seconds=float(clip.span_seconds[last_frame, 1]),
                similarity=None if tail else _number(found.similarity[0, index]),
                relevance=None if tail else _number(found.relevance[0, index]),
                key_bits=tuple(FULL_PRECISION if tail else int(plan.key_bits[index]) for plan in plans),
                value_bits=tuple(FULL_PRECISION if tail else int(plan.value_bits[index]) for plan in plans),
            )
        )
    return tuple(rows)


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def layers(policy: Policy, plans: Sequence[LayerPlan], sensitivity: Sequence[float | None]) -> tuple[LayerResult, ...]:
    """Sensitivity, thresholds and histogram of every layer."""
    rows = []
    for index, (plan, s) in enumerate(zip(plans, sensitivity, strict=True)):
        low, high = policy.thresholds(s) or (None, None)
        widths, counts = np.unique(plan.key_bits, return_counts=True)
        histogram = {int(width): int(count) for width, count in zip(widths, counts, strict=True)}
        rows.append(LayerResult(index, s, low, high, histogram))
    return tuple(rows)


def memory(state: Prefilled, model: VideoModel) -> MemoryResult:
    """Bytes of a sealed cache as it is now."""
    from wq_cli.device import peak_bytes

    cache = state.cache
    return MemoryResult(
        kv_bytes=cache.nbytes,
        kv_bytes_full=cache.full_nbytes,
        effective_bits=cache.visual_bits,
        metadata_bytes=cache.metadata_nbytes,
        peak_bytes=peak_bytes(model.device),
    )


def video(clip: Clip) -> VideoResult:
    """The file and the frames taken from it."""
    from wq_cli.scenes import COMMENT_PREFIX

    info = clip.info
    return VideoResult(
        path=info.path,
        width=info.width,
        height=info.height,
        duration_seconds=info.duration_seconds,
        frames=len(clip.frames),
        frames_requested=clip.requested,
        pts_seconds=tuple(float(t) for t in clip.pts_seconds),
        rotation_degrees=info.rotation_degrees,
        has_audio=info.has_audio,
        is_scene=(info.comment or "").startswith(COMMENT_PREFIX),
    )


def model(of: VideoModel, name: str, is_demo: bool) -> ModelResult:
    """A loaded model, and the backend that its cache will run on."""
    import wq_kernels
    from wq_cli.engine import kv_shape

    backend = wq_kernels.choose_backend(of.device, of.dtype)
    heads, dim = kv_shape(of.text_config)
    return ModelResult(
        name=name,
        model_type=of.model_type,
        is_demo=is_demo,
        device=str(of.device),
        dtype=str(of.dtype).removeprefix("torch."),
        backend=backend.name,
        backend_reason=backend.reason,
        layers=of.text_config.num_hidden_layers,
        kv_heads=heads,
        head_dim=dim,
    )


def policy(settings: Quantization) -> PolicyResult:
    """The policy and every setting that can change its plan."""
    chosen = asdict(settings)
    return PolicyResult(chosen.pop("policy"), chosen)


def notices(clip: Clip, is_demo: bool, rows: Sequence[WindowResult]) -> Iterator[str]:
    """What the user should know besides the figures, one sentence each."""
    if is_demo and not video(clip).is_scene:
        yield DEMO_NOTICE
    yield from clip.notices
    scored = [row for row in rows if row.role == "scored" and row.similarity is not None]
    if scored and all(row.relevance is None for row in scored):
        why = "score alike" if len(scored) > 1 else "are too few to compare"
        yield f"the windows {why}, so all of them get the middle width"


def own_windows(asked: Quantization, used: Quantization) -> Iterator[str]:
    """Says so where a policy takes windows of its own instead of those that were asked for."""
    if asked.window not in (used.window, type(asked).window):
        name = name_of(used.policy)
        yield f"`{name}` takes windows of {used.window}, not {asked.window}: `{name}:window={asked.window}` is heard"


def unknown_words(model: VideoModel, texts: Sequence[str]) -> Iterator[str]:
    """Names the words of questions that are not in the model's vocabulary; byte-level vocabularies hold every word."""
    tokenizer = model.processor.tokenizer
    words: dict[str, None] = {}
    for text in texts:
        tokens = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        for token, (start, end) in zip(tokens["input_ids"], tokens["offset_mapping"], strict=True):
            if token == tokenizer.unk_token_id:
                words[text[start:end]] = None
    if words:
        yield f"the model does not know {', '.join(f'`{word}`' for word in words)}"


def shared_times(prompt: Prompt, visual: VisualFeatures) -> Iterator[str]:
    """Says so where the model's time axis is too coarse: frames taken close together get one and the same position."""
    if visual.grid is None or prompt.positions.ndim == 1:
        return
    steps = visual.grid[0]
    moments = len(prompt.positions[0, prompt.visual_mask].unflatten(0, (steps, -1))[:, 0].unique())
    if moments < steps:
        yield f"the model tells {moments} moments apart in {steps} groups of frames: fewer frames a second would do"


def is_stuck(ids: Sequence[int]) -> bool:
    """Whether an answer ends in one short phrase, over and over."""
    for length in range(1, _PHRASE_TOKENS + 1):
        tail = max(_PHRASE_TIMES * length, _STUCK_TOKENS)
        end = ids[-tail:]
        if len(end) == tail and end[length:] == end[:-length]:
            return True
    return False
