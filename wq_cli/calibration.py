"""What a policy wants to know of a model beforehand, measured on a few clips and kept in the profile.

So far that is s_i of every layer (eq 9). Another policy's data is another measurement of the same prompts and another
key of the profile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from wq_cli import engine, pipeline, room
from wq_cli import profile as profiles
from wq_cli import video as reader
from wq_cli.config import Quantization, Settings
from wq_cli.errors import UsageError

if TYPE_CHECKING:
    from wq_cli.models.base import Prompt, VideoModel
    from wq_cli.pipeline import Listener
    from wq_cli.profile import Profile

QUESTION = "What happens in the video?"
SCENE_SEEDS = (0, 1, 2)
SCENE_SECONDS = 12.0
DIGITS = 4  # a sensitivity varies more than this from clip to clip


@dataclass(frozen=True)
class CalibrateResult:
    """What `wq calibrate` prints.

    Attributes:
        path: The profile that holds it now.
        clips: What was measured on.
        sensitivity: s_i of every layer, the mean over clips.
        largest_spread: Of the layer that differs most, its largest minus its smallest s_i over clips.
    """

    command: str
    profile: str
    path: str
    clips: tuple[str, ...]
    sensitivity: tuple[float, ...]
    largest_spread: float


def calibrate(videos: Sequence[str], settings: Settings, listener: Listener) -> CalibrateResult:
    """Measure the layers of a profile's model and write s_i to the user's copy of the profile.

    Args:
        videos: Clips to measure on; scenes of the demo world when there are none.
        settings: All options; `runtime.profile` names the profile.
        listener: Told of stages: render, load, calibrate with one step per clip.

    Raises:
        WqError: Model or video cannot be used, or the profile cannot be written.
    """
    if settings.runtime.model is not None:
        raise UsageError("what is measured goes into a profile, so that its model is measured", "leave `--model` away")
    profile = profiles.load(settings.runtime.profile)
    path = profiles.own_file(profile)
    with TemporaryDirectory(prefix="wq-calibrate-") as folder, pipeline.backend(settings):
        paths = list(videos)
        if not paths:
            listener.stage("render")
            paths = _render(Path(folder), settings.sampling.frames or profile.frames)
        for clip in paths:
            reader.probe(clip, settings.limits, settings.sampling)
        listener.stage("load")
        model = pipeline.load_model(pipeline.open_checkpoint(profile, settings, listener), settings, listener)
        listener.stage("calibrate", len(paths))
        rows = []
        for clip in paths:
            rows.append(_measured(model, clip, profile, settings))
            listener.advance()
    measured = np.array(rows)
    means = tuple(round(float(mean), DIGITS) for mean in measured.mean(axis=0))
    profiles.remember(profile, "sensitivity", means)
    return CalibrateResult(
        command="calibrate",
        profile=profile.name,
        path=str(path),
        clips=tuple(videos) or tuple(f"rendered scene, seed {seed}" for seed in SCENE_SEEDS),
        sensitivity=means,
        largest_spread=float(np.ptp(measured, axis=0).max()),
    )


def sensitivity(model: VideoModel, prompt: Prompt) -> list[float]:
    """s_i of every layer on one prompt (eq 9)."""
    request = engine.prepare(model, [prompt], Quantization(policy="windowquant"), room=1)
    return [s for s in engine.prefill(model, request).sensitivity if s is not None]


def _render(folder: Path, frames: int) -> list[str]:
    from wq_cli.scenes.make import make

    paths = [folder / f"{seed}.mp4" for seed in SCENE_SEEDS]
    for seed, path in zip(SCENE_SEEDS, paths, strict=True):
        make(path, seed=seed, seconds=SCENE_SECONDS, fps=max(2.0, frames / SCENE_SECONDS))
    return [str(path) for path in paths]


def _measured(model: VideoModel, path: str, profile: Profile, settings: Settings) -> list[float]:
    """s_i of every layer on one clip."""
    clip = reader.read(
        path, settings.sampling, default_frames=profile.frames, max_side=profile.max_side, limits=settings.limits
    )
    clip = room.within_token_limit(model, clip, settings.limits.max_visual_tokens)
    frames = len(clip.frames)
    with pipeline.memory_errors(model.device, frames, settings):
        visual = model.encode(clip.frames, clip.pts_seconds)
        prompt = model.prompt(QUESTION, visual)
        tokens = len(visual.embeds)
        text_tokens = len(prompt.embeds) - tokens
        room.check_context(
            model.text_config, frames=frames, visual_tokens=tokens, text_tokens=text_tokens, new_tokens=0
        )
        return sensitivity(model, prompt)
