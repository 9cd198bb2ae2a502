"""From a video file and a question to a result: the stages in order, one direction (docs/architecture.md)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wq_cli.config import Settings
from wq_cli.errors import DeviceError, WqError
from wq_cli.results import (
    AskResult,
    InspectResult,
    LayerResult,
    MemoryResult,
    ModelResult,
    PolicyResult,
    TimingResult,
    VideoResult,
    WindowResult,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wq_cli.engine import Batch, Prefilled, Search
    from wq_cli.models.base import VideoModel, VisualFeatures
    from wq_cli.policies.base import LayerPlan, Policy
    from wq_cli.profile import Profile
    from wq_cli.video import Clip

# What a profile calls the model that comes with this package.
DEMO_MODEL = "demo"
DEMO_NOTICE = (
    "this is the demo model: it knows nothing but the world of `wq scenes`, so its answer about this video means "
    "little; `--profile llava-onevision-0.5b` takes a real model"
)


class Listener(Protocol):
    """Hears about a run while it goes on. Stages: load, decode, encode, score, prefill, generate."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A stage begins; `total` steps where they can be counted."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of the stage are done."""

    def prepared(self, result: AskResult) -> None:
        """The cache is sealed: everything is known but the answer (`answer` is empty, decode times are None)."""

    def token(self, text: str) -> None:
        """A piece of the answer."""


@dataclass(frozen=True)
class Loaded:
    """A model and a clip it has seen: what a question can be put to."""

    profile: Profile
    name: str
    is_demo: bool
    model: VideoModel
    clip: Clip
    visual: VisualFeatures
    load_ms: float
    decode_ms: float
    encode_ms: float


def ask(video: str, prompt: str, settings: Settings, listener: Listener) -> AskResult:
    """Answer a question about a video through a cache of packed windows.

    Args:
        video: Path of the file.
        prompt: The question.
        settings: All options.
        listener: Told of stages, the sealed cache and each piece of the answer.

    Raises:
        WqError: Anything the user can fix.
    """
    if not prompt.strip():
        raise WqError("the question is empty", 'ask something: wq ask VIDEO "what happens?"')
    with backend(settings):
        loaded = open_video(video, settings, listener)
        with _memory_errors(loaded):
            return _answer(loaded, prompt, settings, listener)


def _answer(loaded: Loaded, text: str, settings: Settings, listener: Listener) -> AskResult:
    from wq_cli import engine, policies

    model, quantization, generation = loaded.model, settings.quantization, settings.generation
    listener.stage("score")
    policy = policies.create(quantization)
    prompt = model.prompt(text, loaded.visual, quantization.score_text == "prompt")
    _check_context(loaded, len(prompt.embeds), generation.max_new_tokens)
    batch = engine.Batch.of([prompt], quantization.window, until_visual_end=generation.question_after_cache)
    found = engine.search(model, batch, quantization, policy)
    cache = engine.new_cache(model, batch, quantization, generation.max_new_tokens)
    sensitivity = calibrated_sensitivity(loaded.profile, loaded.model, settings)
    engine.fit_budget(policy, cache, model, found, quantization, sensitivity)

    listener.stage("prefill", len(cache.layers))
    state = engine.prefill(model, batch, cache, policy, found, sensitivity, lambda layer: listener.advance())
    if generation.question_after_cache:
        engine.ask_through_cache(model, state, [prompt])
    result = _describe(loaded, settings, text, batch, policy, found, state, len(prompt.embeds))
    listener.prepared(result)

    listener.stage("generate", generation.max_new_tokens)
    ids: list[int] = []
    shown = ""
    marks = [time.perf_counter()]
    for token in engine.decode(model, state, generation):
        ids.append(int(token))
        marks.append(time.perf_counter())
        answer = model.text_of(ids)
        # A character may still be in the middle of its bytes.
        if not answer.endswith("\ufffd"):
            listener.token(answer[len(shown) :])
            shown = answer
        listener.advance()
    answer = model.text_of(ids)
    listener.token(answer[len(shown) :])
    steps = np.diff(marks)[1:] * 1e3
    per_token = float(np.median(steps)) if len(steps) else None
    return replace(
        result,
        answer=answer.strip(),
        answer_tokens=len(ids),
        finish_reason="stop" if ids[-1] in model.eos_ids else "length",
        timing=replace(
            result.timing,
            decode_ms_per_token=per_token,
            tokens_per_second=1e3 / per_token if per_token else None,
        ),
        memory=_memory(state, model),
    )


def inspect(video: str, prompts: list[str], settings: Settings, listener: Listener) -> tuple[InspectResult, Clip]:
    """The map of a video for some prompts: scores and bits of every window, without an answer.

    Sensitivities that the profile does not have are measured in a prefill of the first prompt.

    Returns:
        The map, and the clip for its thumbnails.

    Raises:
        WqError: Anything the user can fix.
    """
    with backend(settings):
        loaded = open_video(video, settings, listener)
        with _memory_errors(loaded):
            return _map(loaded, prompts, settings, listener), loaded.clip


def _map(loaded: Loaded, prompts: list[str], settings: Settings, listener: Listener) -> InspectResult:
    from wq_cli import engine, policies

    model, quantization = loaded.model, settings.quantization
    sensitivity = calibrated_sensitivity(loaded.profile, loaded.model, settings)
    rows: list[tuple[WindowResult, ...]] = []
    layers: tuple[LayerResult, ...] = ()
    for text in prompts:
        listener.stage("score")
        policy = policies.create(quantization)
        prompt = model.prompt(text, loaded.visual, quantization.score_text == "prompt")
        _check_context(loaded, len(prompt.embeds), 0)
        batch = engine.Batch.of([prompt], quantization.window)
        found = engine.search(model, batch, quantization, policy)
        cache = engine.new_cache(model, batch, quantization, 0)
        engine.fit_budget(policy, cache, model, found, quantization, sensitivity)
        count = len(cache.layers)
        if sensitivity is None and policy.needs_sensitivity:
            listener.stage("prefill", count)
            state = engine.prefill(model, batch, cache, policy, found, None, lambda layer: listener.advance())
            plans, sensitivity = state.plans, [s or 0.0 for s in state.sensitivity]
        else:
            known: Sequence[float | None] = sensitivity or [None] * count
            plans = [policy.plan_layer(layer, found.relevance, known[layer]) for layer in range(count)]
        rows.append(_windows(loaded, batch, found, plans))
        layers = layers or _layers(policy, plans, sensitivity or [None] * count)
    return InspectResult(
        command="inspect",
        video=describe_video(loaded.clip),
        model=describe_model(loaded.model, loaded.name, loaded.is_demo),
        policy=_policy(settings),
        prompts=tuple(prompts),
        windows=tuple(rows),
        layers=layers,
        visual_tokens=len(loaded.visual.embeds),
        window_size=quantization.window,
        notices=_notices(loaded, rows[0]),
    )


def open_video(video: str, settings: Settings, listener: Listener) -> Loaded:
    """Load the model, read the video meanwhile, and encode its frames.

    Raises:
        WqError: Profile, model, device or video cannot be used.
    """
    from wq_cli import profile as profiles
    from wq_cli import video as reader

    profile = profiles.load(settings.runtime.profile)
    reader.probe(video)
    listener.stage("load")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(_timed_read, video, settings, profile)
        started = time.perf_counter()
        model = load_model(profile, settings)
        load_ms = (time.perf_counter() - started) * 1e3
        listener.stage("decode")
        clip, decode_ms = reading.result()
    listener.stage("encode", len(clip.frames))
    started = time.perf_counter()
    visual = model.encode(clip.frames, clip.pts_seconds, listener.advance)
    encode_ms = (time.perf_counter() - started) * 1e3
    named = settings.runtime.model
    is_demo = named is None and profile.model == DEMO_MODEL
    return Loaded(profile, named or profile.name, is_demo, model, clip, visual, load_ms, decode_ms, encode_ms)


def load_model(profile: Profile, settings: Settings) -> VideoModel:
    """The model that `--model` or the profile names, on the device that was asked for.

    Raises:
        WqError: It cannot be loaded, or the backend cannot run there.
    """
    import wq_kernels
    from wq_cli.models import loading
    from wq_cli.scenes import WEIGHTS

    device = loading.choose_device(settings.runtime.device)
    source, revision = settings.runtime.model, None
    if source is None:
        source = str(WEIGHTS) if profile.model == DEMO_MODEL else profile.model
        revision = profile.revision
    model = loading.load(source, device, settings.runtime.dtype, revision)
    try:
        wq_kernels.choose_backend(device, model.dtype)
    except RuntimeError as error:
        raise DeviceError(str(error), "leave `--backend` away to fall back to PyTorch") from error
    return model


@contextmanager
def backend(settings: Settings) -> Iterator[None]:
    """The implementation of the kernels that was asked for."""
    import wq_kernels

    with wq_kernels.use_backend(settings.runtime.backend):
        yield


def _timed_read(video: str, settings: Settings, profile: Profile) -> tuple[Clip, float]:
    from wq_cli import video as reader

    started = time.perf_counter()
    clip = reader.read(video, settings.sampling, default_frames=profile.frames, max_side=profile.max_side)
    return clip, (time.perf_counter() - started) * 1e3


@contextmanager
def _memory_errors(loaded: Loaded) -> Iterator[None]:
    """An out-of-memory error of the device becomes one line that says what to lower."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(loaded.model.device)
        raise DeviceError(
            f"`{loaded.model.device}` ran out of memory: {free / 2**30:.1f} of {total / 2**30:.1f} GiB are free",
            f"lower `--frames` (now {len(loaded.clip.frames)}) or `--max-new-tokens`",
        ) from error


def calibrated_sensitivity(profile: Profile, model: VideoModel, settings: Settings) -> Sequence[float] | None:
    """Calibrated s_i of every layer, or None to measure them in the prefill.

    Raises:
        WqError: The profile has none and the user insists, or they are of another model.
    """
    asked, known = settings.quantization.sensitivity, profile.sensitivity
    if asked == "online" or (known is None and asked == "auto") or (settings.runtime.model and asked == "auto"):
        return None
    layers = model.text_config.num_hidden_layers
    if known is None or len(known) != layers:
        found = "none" if known is None else str(len(known))
        raise WqError(
            f"profile `{profile.name}` has {found} of the {layers} layer sensitivities",
            "measure them in the prefill: `--sensitivity online`",
        )
    return known


def _check_context(loaded: Loaded, prompt_tokens: int, new_tokens: int) -> None:
    """Refuse a prompt and answer that are longer than the positions the language model was made for."""
    positions = loaded.model.text_config.max_position_embeddings
    if prompt_tokens + new_tokens <= positions:
        return
    frames, visual = len(loaded.clip.frames), len(loaded.visual.embeds)
    fits = (positions - new_tokens - prompt_tokens + visual) * frames // visual
    raise WqError(
        f"{frames} frames, question and answer need {prompt_tokens + new_tokens} tokens, "
        f"the model has {positions} positions",
        f"`--frames {fits}` fits" if fits > 0 else f"lower `--max-new-tokens` (now {new_tokens})",
    )


def _describe(
    loaded: Loaded,
    settings: Settings,
    text: str,
    batch: Batch,
    policy: Policy,
    found: Search,
    state: Prefilled,
    prompt_tokens: int,
) -> AskResult:
    windows = _windows(loaded, batch, found, state.plans)
    visual_tokens = len(loaded.visual.embeds)
    return AskResult(
        command="ask",
        video=describe_video(loaded.clip),
        model=describe_model(loaded.model, loaded.name, loaded.is_demo),
        policy=_policy(settings),
        prompt=text,
        windows=windows,
        layers=_layers(policy, state.plans, state.sensitivity),
        visual_tokens=visual_tokens,
        text_tokens=prompt_tokens - visual_tokens,
        window_size=settings.quantization.window,
        memory=_memory(state, loaded.model),
        timing=TimingResult(
            load_ms=loaded.load_ms,
            decode_ms=loaded.decode_ms,
            encode_ms=loaded.encode_ms,
            search_ms=found.ms,
            first_token_ms=state.first_token_ms,
            seal_ms=state.seal_ms,
            decode_ms_per_token=None,
            tokens_per_second=None,
        ),
        answer="",
        answer_tokens=0,
        finish_reason="length",
        notices=_notices(loaded, windows),
    )


def _windows(loaded: Loaded, batch: Batch, found: Search, plans: list[LayerPlan]) -> tuple[WindowResult, ...]:
    """Rows of the map for the first request of the batch, the tail last."""
    size, count = batch.visual.window, batch.visual.windows
    first_fixed = bool(count) and found.relevance.shape[1] > 0 and np.isnan(found.relevance[0, 0])
    rows = []
    for index in range(-(-len(loaded.visual.embeds) // size)):
        frames = loaded.visual.frames[index * size : (index + 1) * size]
        tail = index >= count
        start, end = _time_range(loaded.clip, frames)
        rows.append(
            WindowResult(
                index=index,
                role="tail" if tail else "first" if index == 0 and first_fixed else "scored",
                tokens=len(frames),
                first_frame=int(_real(frames, loaded.clip)[0]),
                last_frame=int(_real(frames, loaded.clip)[-1]),
                start_seconds=start,
                end_seconds=end,
                similarity=None if tail else _number(found.similarity[0, index]),
                relevance=None if tail else _number(found.relevance[0, index]),
                key_bits=tuple(16 if tail else int(plan.key_bits[index]) for plan in plans),
                value_bits=tuple(16 if tail else int(plan.value_bits[index]) for plan in plans),
            )
        )
    return tuple(rows)


def _real(frames: NDArray[np.int64], clip: Clip) -> NDArray[np.int64]:
    """Frames of a window's tokens; a window of a newline token alone counts as the last frame."""
    real = frames[frames >= 0]
    return real if len(real) else np.array([len(clip.frames) - 1])


def _time_range(clip: Clip, frames: NDArray[np.int64]) -> tuple[float, float]:
    real = _real(frames, clip)
    return float(clip.span_seconds[real[0], 0]), float(clip.span_seconds[real[-1], 1])


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _layers(policy: Policy, plans: list[LayerPlan], sensitivity: Sequence[float | None]) -> tuple[LayerResult, ...]:
    rows = []
    for index, (plan, s) in enumerate(zip(plans, sensitivity, strict=True)):
        low, high = policy.thresholds(s) or (None, None)
        widths, counts = np.unique(plan.key_bits, return_counts=True)
        histogram = {int(width): int(count) for width, count in zip(widths, counts, strict=True)}
        rows.append(LayerResult(index, s, low, high, histogram))
    return tuple(rows)


def _memory(state: Prefilled, model: VideoModel) -> MemoryResult:
    from wq_cli.engine import peak_bytes

    cache = state.cache
    return MemoryResult(
        kv_bytes=cache.nbytes,
        kv_bytes_full=cache.full_nbytes,
        effective_bits=cache.visual_bits,
        metadata_bytes=cache.metadata_nbytes,
        peak_bytes=peak_bytes(model.device),
    )


def describe_video(clip: Clip) -> VideoResult:
    from wq_cli.scenes import COMMENT_PREFIX

    info = clip.info
    return VideoResult(
        path=str(info.path),
        width=info.width,
        height=info.height,
        duration_seconds=info.duration_seconds,
        frames=len(clip.frames),
        frames_requested=clip.requested,
        pts_seconds=tuple(float(t) for t in clip.pts_seconds),
        rotation_degrees=info.rotation_degrees,
        is_scene=(info.comment or "").startswith(COMMENT_PREFIX),
    )


def describe_model(model: VideoModel, name: str, is_demo: bool) -> ModelResult:
    import wq_kernels
    from wq_cli.engine import kv_shape

    chosen = wq_kernels.choose_backend(model.device, model.dtype)
    heads, dim = kv_shape(model.text_config)
    return ModelResult(
        name=name,
        model_type=model.model_type,
        is_demo=is_demo,
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        backend=chosen.name,
        backend_reason=chosen.reason,
        layers=model.text_config.num_hidden_layers,
        kv_heads=heads,
        head_dim=dim,
    )


def _policy(settings: Settings) -> PolicyResult:
    chosen = asdict(settings.quantization)
    return PolicyResult(chosen.pop("policy"), chosen)


def _notices(loaded: Loaded, windows: tuple[WindowResult, ...]) -> tuple[str, ...]:
    return tuple(_all_notices(loaded, windows))


def _all_notices(loaded: Loaded, windows: tuple[WindowResult, ...]) -> Iterator[str]:
    if loaded.is_demo and not describe_video(loaded.clip).is_scene:
        yield DEMO_NOTICE
    yield from loaded.clip.notices
    scored = [window for window in windows if window.role == "scored"]
    if any(window.similarity is not None and window.relevance is None for window in scored):
        yield "the windows score alike, so all of them get the middle width"
