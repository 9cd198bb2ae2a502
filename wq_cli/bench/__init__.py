"""Policies side by side on one clip: the same prefill rule, the same question, memory, speed and fidelity (`wq bench`).

Fidelity is read through the packed cache only: the video is prefilled, sealed, and the question and the answer of the
full-precision run are fed through it. A first token out of a full-precision prefill says nothing about a cache.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from wq_cli import describe, pipeline
from wq_cli.bench.measure import Measurement, measure
from wq_cli.config import Settings
from wq_cli.errors import UsageError
from wq_cli.results import BenchResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wq_cli.models.base import Prompt, VideoModel, VisualFeatures
    from wq_cli.pipeline import Listener
    from wq_cli.profile import Profile
    from wq_cli.results import BenchRow, ModelResult, VideoResult

# What is compared when nothing is named: the baseline, WindowQuant, its controls, and uniform widths of the same codec.
DEFAULT_POLICIES = ("fp16", "windowquant", "random", "rtn8", "rtn4", "rtn2")
FULL = "fp16"
# Of the clip that is rendered when no video is given.
SCENE_SEED, SCENE_FPS, SCENE_SIZE = 0, 10.0, 448


def run(
    video: str | None,
    prompt: str,
    settings: Settings,
    listener: Listener,
    *,
    policies: Sequence[str] = DEFAULT_POLICIES,
    batch: int = 1,
    decode_tokens: int = 32,
    fidelity_tokens: int = 32,
    random_weights: bool = False,
    with_peers: bool = False,
) -> BenchResult:
    """Measure policies.

    Args:
        video: File to use; None renders a scene (or, with random weights, makes up frames).
        prompt: The question.
        settings: All options; `quantization.policy` is replaced by each policy in turn, the length of answers by
            `decode_tokens`.
        listener: Told of stages: load, decode, encode, then one stage per policy.
        policies: Names in the order of the rows. The full-precision run is always made first, as the reference.
        batch: The same request this many times side by side.
        decode_tokens: Steps timed after the first token.
        fidelity_tokens: Tokens of the full-precision answer that are compared; 0 skips the comparison.
        random_weights: Build the profile's architecture with random weights: right for speed and memory only.
        with_peers: Measure transformers' own caches too.

    Raises:
        WqError: Anything the user can fix.
    """
    from wq_cli.bench import peers
    from wq_cli.policies import check

    for name in policies:
        check(name)
    with pipeline.backend(settings):
        subject = open_subject(video, prompt, settings, listener, random_weights)
        prompts = [subject.prompt] * batch
        settings = replace(settings, generation=replace(settings.generation, max_new_tokens=decode_tokens + 1))
        rows, reference = _policy_rows(subject, prompts, settings, listener, policies, fidelity_tokens)
        notices = list(subject.notices)
        notices += [f"{row.policy}: {row.compile_obstacle}" for row in rows if row.compile_obstacle]
        versions = made_with(subject.model)
        if with_peers:
            beside, left_out = peers.rows(
                subject.model, prompts, decode_tokens=decode_tokens, reference=reference, on_peer=listener.stage
            )
            rows += beside
            notices += left_out
            versions |= peers.packages()
    return BenchResult(
        command="bench",
        video=subject.video,
        model=subject.described,
        prompt=prompt,
        batch=batch,
        visual_tokens=int(subject.prompt.visual_mask.sum()),
        decode_tokens=decode_tokens,
        fidelity_tokens=fidelity_tokens,
        rows=tuple(rows),
        settings=describe.policy(settings.quantization).settings,
        versions=versions,
        date=date.today().isoformat(),
        notices=tuple(notices),
    )


def _policy_rows(
    subject: Subject,
    prompts: list[Prompt],
    settings: Settings,
    listener: Listener,
    policies: Sequence[str],
    fidelity_tokens: int,
) -> tuple[list[BenchRow], Measurement]:
    """Rows of the policies, and the full-precision measurement that they are compared with."""
    from wq_cli.policies import beside_others

    made: dict[str, Measurement] = {}
    for name in dict.fromkeys((FULL, *policies)):
        listener.stage(name)
        # A reference without a row would take the compilation that the first row is to tell of.
        generation = settings.generation if name in policies else replace(settings.generation, compile_layers=False)
        changed = replace(settings, quantization=beside_others(settings.quantization, name), generation=generation)
        made[name] = measure(subject.model, prompts, changed, fidelity_tokens, made.get(FULL), subject.sensitivity)
    return [made[name].row for name in dict.fromkeys(policies)], made[FULL]


@dataclass(frozen=True)
class Subject:
    """What is measured on.

    Attributes:
        prompt: With all frames of the clip.
        frames: Of the clip.
        shortened: The same with fewer of its frames.
    """

    model: VideoModel
    prompt: Prompt
    frames: int
    shortened: Callable[[int], Prompt]
    sensitivity: Sequence[float] | None
    video: VideoResult | None
    described: ModelResult
    notices: tuple[str, ...] = ()


def open_subject(video: str | None, text: str, settings: Settings, listener: Listener, random_weights: bool) -> Subject:
    """A model, a clip it has seen and a question; see `run`."""
    return _random(settings, listener) if random_weights else _real(video, text, settings, listener)


def _real(video: str | None, text: str, settings: Settings, listener: Listener) -> Subject:
    with TemporaryDirectory(prefix="wq-bench-") as folder:
        path = video
        if path is None:
            path = str(Path(folder) / "scene.mp4")
            listener.stage("render")
            _render(Path(path), settings)
        loaded = pipeline.open_video(path, settings, listener)
    model, clip = loaded.model, loaded.clip

    def prompt(visual: VisualFeatures) -> Prompt:
        return model.prompt(text, visual, settings.quantization.score_text == "prompt")

    def shortened(count: int) -> Prompt:
        fewer = clip.thinned(count, "fewer are measured too")
        return prompt(model.encode(fewer.frames, fewer.pts_seconds))

    return Subject(
        model,
        prompt(loaded.visual),
        len(clip.frames),
        shortened,
        pipeline.calibrated_sensitivity(loaded.profile, model, settings),
        replace(describe.video(clip), path=video or f"rendered scene, seed {SCENE_SEED}"),
        describe.model(model, loaded.name, loaded.is_demo),
        clip.notices,
    )


def _render(path: Path, settings: Settings) -> None:
    """A scene long enough for the frames that are asked for."""
    from wq_cli import profile
    from wq_cli.scenes.make import LONGEST_SECONDS, make

    frames = settings.sampling.frames or profile.load(settings.runtime.profile).frames
    if frames > LONGEST_SECONDS * SCENE_FPS:
        raise UsageError(f"a rendered scene has no {frames} frames", "name a longer clip with `--video`")
    make(path, seed=SCENE_SEED, seconds=max(8.0, frames / SCENE_FPS), fps=SCENE_FPS, size=SCENE_SIZE)


def _random(settings: Settings, listener: Listener) -> Subject:
    from wq_cli import profile as profiles
    from wq_cli.bench import random_weights

    profile = profiles.load(settings.runtime.profile)
    listener.stage("load")
    model = random_weights.build(profile, settings)
    count = settings.sampling.frames or profile.frames
    listener.stage("encode", count)
    frames = np.random.default_rng(0).integers(0, 256, (count, SCENE_SIZE, SCENE_SIZE, 3), dtype=np.uint8)

    def prompt(count: int, on_frames: Callable[[int], None] = lambda count: None) -> Prompt:
        visual = model.encode(frames[:count], np.arange(count, dtype=np.float64), on_frames)
        return random_weights.prompt(model, visual)

    described = describe.model(model, f"{profile.name} (random weights)", is_demo=False)
    return Subject(model, prompt(count, listener.advance), count, prompt, None, None, described)


@dataclass(frozen=True)
class OpenedModel:
    """A profile's model, ready, and how results speak of it; sensitivities as `pipeline` finds them."""

    profile: Profile
    model: VideoModel
    sensitivity: Sequence[float] | None
    described: ModelResult


def open_model(settings: Settings, listener: Listener) -> OpenedModel:
    """The model that `--model` or the profile names.

    Raises:
        WqError: It cannot be had.
    """
    from wq_cli import profile as profiles

    profile, named = profiles.load(settings.runtime.profile), settings.runtime.model
    listener.stage("load")
    model = pipeline.load_model(pipeline.open_checkpoint(profile, settings, listener), settings, listener)
    described = describe.model(model, named or profile.name, named is None and profile.model == pipeline.DEMO_MODEL)
    return OpenedModel(profile, model, pipeline.calibrated_sensitivity(profile, model, settings), described)


def made_with(model: VideoModel) -> dict[str, str]:
    """Versions and card behind the figures."""
    import torch

    from wq_cli import __version__

    parts = {"wq": __version__, "python": platform.python_version()}
    parts |= {name: version(name) for name in ("torch", "transformers")}
    if model.device.type == "cuda":
        parts["card"] = torch.cuda.get_device_name(model.device)
    return parts
