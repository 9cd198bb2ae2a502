"""From a video file and a question to a result: the stages in order, one direction (docs/architecture.md)."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING, Protocol

import numpy as np

from wq_cli import describe
from wq_cli.config import Settings
from wq_cli.errors import DeviceError, WqError
from wq_cli.results import AskResult, InspectResult, LayerResult, TimingResult, WindowResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from wq_cli.engine import Prefilled
    from wq_cli.models.base import VideoModel, VisualFeatures
    from wq_cli.models.loading import Checkpoint
    from wq_cli.profile import Profile
    from wq_cli.video import Clip

# What a profile calls the model that comes with this package.
DEMO_MODEL = "demo"


class Listener(Protocol):
    """Hears about a run while it goes on. Stages: load (download, load), decode, encode, score, prefill, generate."""

    def stage(self, name: str, total: int | None = None) -> None:
        """A stage begins; `total` steps where they can be counted."""

    def advance(self, steps: int = 1) -> None:
        """Some steps of the stage are done."""

    def notice(self, text: str) -> None:
        """What the user should know before the work is done."""

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
        loaded = open_video(video, settings, listener, settings.generation.max_new_tokens)
        with memory_errors(loaded.model.device, len(loaded.clip.frames), settings):
            return _answer(loaded, prompt, settings, listener)


def _answer(loaded: Loaded, text: str, settings: Settings, listener: Listener) -> AskResult:
    from wq_cli import engine

    model, quantization, generation = loaded.model, settings.quantization, settings.generation
    listener.stage("score")
    prompt = model.prompt(text, loaded.visual, quantization.score_text == "prompt")
    _check_context(loaded, len(prompt.embeds), generation.max_new_tokens)
    request = engine.prepare(
        model,
        [prompt],
        quantization,
        room=generation.max_new_tokens,
        sensitivity=calibrated_sensitivity(loaded.profile, model, settings),
        until_visual_end=generation.question_after_cache,
    )
    listener.stage("prefill", len(request.cache.layers))
    state = engine.prefill(model, request, lambda layer: listener.advance())
    if generation.question_after_cache:
        engine.ask_through_cache(model, state, [prompt])
    settled = request.policy.settings  # a policy may have windows of its own
    rows = describe.windows(loaded.clip, loaded.visual, request.found, state.plans, settled)
    visual_tokens = len(loaded.visual.embeds)
    result = AskResult(
        command="ask",
        video=describe.video(loaded.clip),
        model=describe.model(model, loaded.name, loaded.is_demo),
        policy=describe.policy(settled),
        prompt=text,
        windows=rows,
        layers=describe.layers(request.policy, state.plans, state.sensitivity),
        visual_tokens=visual_tokens,
        text_tokens=len(prompt.embeds) - visual_tokens,
        window_size=settled.window,
        memory=describe.memory(state, model),
        timing=TimingResult(
            load_ms=loaded.load_ms,
            decode_ms=loaded.decode_ms,
            encode_ms=loaded.encode_ms,
            search_ms=request.found.ms,
            first_token_ms=state.first_token_ms,
            seal_ms=state.seal_ms,
            decode_ms_per_token=None,
            tokens_per_second=None,
        ),
        answer="",
        answer_tokens=0,
        finish_reason="length",
        notices=(
            *describe.notices(loaded.clip, loaded.is_demo, rows),
            *describe.own_windows(quantization, settled),
            *describe.unknown_words(model, [text]),
            *describe.shared_times(prompt, loaded.visual),
        ),
    )
    listener.prepared(result)
    return replace(_speak(model, state, settings, listener, result), memory=describe.memory(state, model))


def _speak(model: VideoModel, state: Prefilled, settings: Settings, listener: Listener, result: AskResult) -> AskResult:
    """Decode the answer, piece by piece to the listener, and complete the result with it."""
    from wq_cli import decoding

    generation = settings.generation

    listener.stage("generate", generation.max_new_tokens)
    ids: list[int] = []
    shown = ""
    marks = [time.perf_counter()]
    for token in decoding.decode(model, state, generation):
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
    notices = list(result.notices)
    if describe.is_stuck(ids):
        notices.append(describe.STUCK_NOTICE)
    if state.compiled and state.compiled.obstacle:
        notices.append(state.compiled.obstacle)
    compile_ms = state.compiled.compile_ms if state.compiled else None
    # Reading the prompt comes before the first token, compiling before the second.
    steps = np.diff(marks)[1 if compile_ms is None else 2 :] * 1e3
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
            steps=state.graph,
            compile_ms=compile_ms,
        ),
        notices=tuple(notices),
    )


def inspect(video: str, prompts: list[str], settings: Settings, listener: Listener) -> tuple[InspectResult, Clip]:
    """The map of a video for some prompts: scores and bits of every window, without an answer.

    Sensitivities that the profile does not have are measured in a prefill of the first prompt; a policy that looks at
    queries has one for each prompt.

    Returns:
        The map, and the clip for its thumbnails.

    Raises:
        WqError: Anything the user can fix.
    """
    with backend(settings):
        loaded = open_video(video, settings, listener)
        with memory_errors(loaded.model.device, len(loaded.clip.frames), settings):
            return _map(loaded, prompts, settings, listener), loaded.clip


def _map(loaded: Loaded, prompts: list[str], settings: Settings, listener: Listener) -> InspectResult:
    from wq_cli import engine

    model, quantization = loaded.model, settings.quantization
    calibrated = calibrated_sensitivity(loaded.profile, model, settings)
    sensitivity: Sequence[float | None] | None = calibrated
    rows: list[tuple[WindowResult, ...]] = []
    layers: tuple[LayerResult, ...] = ()
    for text in prompts:
        listener.stage("score")
        prompt = model.prompt(text, loaded.visual, quantization.score_text == "prompt")
        _check_context(loaded, len(prompt.embeds), 0)
        request = engine.prepare(
            model, [prompt], quantization, room=settings.generation.max_new_tokens, sensitivity=calibrated
        )
        policy, count = request.policy, len(request.cache.layers)
        if policy.needs_queries or (policy.needs_sensitivity and sensitivity is None):
            listener.stage("prefill", count)
            state = engine.prefill(model, request, lambda layer: listener.advance())
            plans, sensitivity = state.plans, state.sensitivity
        else:
            known = sensitivity or [None] * count
            plans = [policy.plan_layer(layer, request.found.relevance, known[layer]) for layer in range(count)]
        rows.append(describe.windows(loaded.clip, loaded.visual, request.found, plans, policy.settings))
        layers = layers or describe.layers(policy, plans, sensitivity or [None] * count)
    return InspectResult(
        command="inspect",
        video=describe.video(loaded.clip),
        model=describe.model(model, loaded.name, loaded.is_demo),
        policy=describe.policy(policy.settings),
        prompts=tuple(prompts),
        windows=tuple(rows),
        layers=layers,
        visual_tokens=len(loaded.visual.embeds),
        window_size=policy.settings.window,
        notices=(
            *describe.notices(loaded.clip, loaded.is_demo, rows[0]),
            *describe.own_windows(quantization, policy.settings),
            *describe.unknown_words(model, prompts),
        ),
    )


def open_video(video: str, settings: Settings, listener: Listener, new_tokens: int = 0) -> Loaded:
    """Load the model, read the video meanwhile, and encode its frames.

    Args:
        video: Path of the file.
        settings: All options.
        listener: Told of stages.
        new_tokens: Longest answer, which must find room behind the frames.

    Raises:
        WqError: Profile, model, device or video cannot be used.
    """
    from wq_cli import profile as profiles
    from wq_cli import room
    from wq_cli import video as reader
    from wq_cli.device import wait

    profile = profiles.load(settings.runtime.profile)
    if settings.runtime.offline and reader.is_web_address(video):
        raise WqError(f"`{video}` is on the web", "leave `--offline` away")
    info = reader.probe(video, settings.limits, settings.sampling)
    listener.stage("load")
    is_over = Event()
    with ThreadPoolExecutor(1) as pool:
        try:
            reading = pool.submit(_timed_read, video, settings, profile, is_over)
            started = time.perf_counter()
            checkpoint = open_checkpoint(profile, settings, listener)
            if settings.limits.max_visual_tokens is None:
                room.check_before_weights(
                    checkpoint.outline,
                    info,
                    planned_frames=room.planned_frames(info, settings.sampling, profile.frames),
                    max_side=profile.max_side,
                    new_tokens=new_tokens,
                    read_clip=lambda: reading.result()[0],
                )
            model = load_model(checkpoint, settings, listener)
            load_ms = (time.perf_counter() - started) * 1e3
            listener.stage("decode")
            clip, decode_ms = reading.result()
        finally:
            is_over.set()  # the pool waits for its thread, also after an error or Ctrl-C
    clip = room.within_token_limit(model, clip, settings.limits.max_visual_tokens)
    listener.stage("encode", len(clip.frames))
    started = time.perf_counter()
    with memory_errors(model.device, len(clip.frames), settings):
        visual = model.encode(clip.frames, clip.pts_seconds, listener.advance)
        wait(model.device)
    encode_ms = (time.perf_counter() - started) * 1e3
    named = settings.runtime.model
    is_demo = named is None and profile.model == DEMO_MODEL
    return Loaded(profile, named or profile.name, is_demo, model, clip, visual, load_ms, decode_ms, encode_ms)


def open_checkpoint(profile: Profile, settings: Settings, listener: Listener) -> Checkpoint:
    """The model that `--model` or the profile names, downloaded if need be, its weights not read yet.

    Raises:
        WqError: It cannot be had.
    """
    from wq_cli.models import loading
    from wq_cli.scenes import WEIGHTS

    source, revision = settings.runtime.model, None
    if source is None:
        source = str(WEIGHTS) if profile.model == DEMO_MODEL else profile.model
        revision = profile.revision
    return loading.open_checkpoint(source, revision, offline=settings.runtime.offline, progress=listener)


def load_model(checkpoint: Checkpoint, settings: Settings, listener: Listener) -> VideoModel:
    """A checkpoint with its weights, on the device that was asked for.

    Raises:
        WqError: It cannot be loaded, or the backend cannot run there.
    """
    import wq_kernels
    from wq_cli import profile as profiles
    from wq_cli.models import loading

    runtime = settings.runtime
    device = loading.choose_device(runtime.device)
    for notice in (
        loading.dtype_notice(runtime.dtype, device, checkpoint.config.dtype),
        loading.room_notice(checkpoint, runtime.device, runtime.dtype, runtime.weights),
    ):
        if notice:
            listener.notice(notice)
    model = loading.load_weights(checkpoint, runtime.device, runtime.dtype, runtime.weights)
    if runtime.model is None:
        model.profile = profiles.load(runtime.profile)
    try:
        wq_kernels.choose_backend(model.device, model.dtype)
    except RuntimeError as error:
        raise DeviceError(str(error), "leave `--backend` away to fall back to PyTorch") from error
    gc.freeze()  # what the imports left is no garbage
    gc.enable()
    return model


@contextmanager
def backend(settings: Settings) -> Iterator[None]:
    """The implementation of the kernels that was asked for."""
    import wq_kernels

    with wq_kernels.use_backend(settings.runtime.backend):
        yield


def _timed_read(video: str, settings: Settings, profile: Profile, is_over: Event) -> tuple[Clip, float]:
    from wq_cli import video as reader

    def go_on() -> None:
        if is_over.is_set():
            raise CancelledError

    started = time.perf_counter()
    clip = reader.read(
        video,
        settings.sampling,
        default_frames=profile.frames,
        max_side=profile.max_side,
        limits=settings.limits,
        on_packet=go_on,
    )
    return clip, (time.perf_counter() - started) * 1e3


def memory_errors(device: torch.device, frames: int, settings: Settings) -> AbstractContextManager[None]:
    """An out-of-memory error of the device becomes one line that says what to lower."""
    from wq_cli import device as devices

    lower = f"lower `--frames` (now {frames}), `max_side` in the profile, `--bits` or `--max-new-tokens`"
    more = "a narrower `--dtype`" if settings.runtime.weights == "4bit" else "`--weights 4bit`, a narrower `--dtype`"
    return devices.memory_errors(device, f"{lower}; {more} or `--device multi` leave more room")


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
    from wq_cli import room

    visual_tokens = len(loaded.visual.embeds)
    room.check_context(
        loaded.model.text_config,
        frames=len(loaded.clip.frames),
        visual_tokens=visual_tokens,
        text_tokens=prompt_tokens - visual_tokens,
        new_tokens=new_tokens,
    )
