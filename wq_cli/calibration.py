"""What a policy wants to know of a model beforehand, measured on a few clips and kept in the profile.

That is s_i of every layer (eq 9), which goes into the profile, or what `wq_cli.measurements` has for another policy,
which goes into a file of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from wq_cli import offline, pipeline, room
from wq_cli import profile as profiles
from wq_cli import video as reader
from wq_cli.config import Settings
from wq_cli.errors import UsageError
from wq_cli.measurements import DEFAULT, MEASUREMENTS
from wq_cli.policies.options import name_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wq_cli.measurements import Measured, Measurement
    from wq_cli.models.base import VideoModel
    from wq_cli.pipeline import Listener
    from wq_cli.profile import Profile

QUESTION = "What happens in the video?"
SCENE_SEEDS = (0, 1, 2)
SCENE_SECONDS = 12.0
DIGITS = 4  # what is measured varies more than this from clip to clip


@dataclass(frozen=True)
class CalibrateResult:
    """What `wq calibrate` prints.

    Attributes:
        path: The profile that holds it now.
        clips: What was measured on.
        policy: Whom it is for.
        measured: Name to numbers of every layer, the mean over clips: `sensitivity` (s_i), or what the policy wants.
        largest_spread: Of the number that differs most, its largest minus its smallest over clips.
    """

    command: str
    profile: str
    path: str
    clips: tuple[str, ...]
    policy: str
    measured: dict[str, Any]
    largest_spread: float


def calibrate(videos: Sequence[str], settings: Settings, listener: Listener) -> CalibrateResult:
    """Measure the layers of a profile's model for one policy and keep what it wants beside the user's profiles.

    Args:
        videos: Clips to measure on; scenes of the demo world when there are none.
        settings: All options; `runtime.profile` names the profile and `quantization.policy` the policy.
        listener: Told of stages: render, load, calibrate with one step per clip.

    Raises:
        WqError: Model or video cannot be used, or the profile cannot be written.
    """
    if settings.runtime.model is not None:
        raise UsageError("what is measured goes into a profile, so that its model is measured", "leave `--model` away")
    profile = profiles.load(settings.runtime.profile)
    policy = name_of(settings.quantization.policy)
    path = profiles.own_file(profile) if policy == DEFAULT else offline.file_of(profile, policy)
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
            rows.append(_measured(model, clip, profile, settings, MEASUREMENTS[policy]))
            listener.advance()
    found = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    means = {name: _rounded(values.mean(axis=0)) for name, values in found.items()}
    if policy == DEFAULT:
        profiles.remember(profile, "sensitivity", means["sensitivity"])
    else:
        offline.write(profile, policy, means)
    return CalibrateResult(
        command="calibrate",
        profile=profile.name,
        path=str(path),
        clips=tuple(videos) or tuple(f"rendered scene, seed {seed}" for seed in SCENE_SEEDS),
        policy=policy,
        measured=means,
        largest_spread=max(float(np.ptp(values, axis=0).max()) for values in found.values()),
    )


def _rounded(values: NDArray[np.float64]) -> Any:
    """As nested lists, to a few digits."""
    return [float(f"{value:.{DIGITS}g}") for value in values] if values.ndim == 1 else [*map(_rounded, values)]


def _render(folder: Path, frames: int) -> list[str]:
    from wq_cli.scenes.make import make

    paths = [folder / f"{seed}.mp4" for seed in SCENE_SEEDS]
    for seed, path in zip(SCENE_SEEDS, paths, strict=True):
        make(path, seed=seed, seconds=SCENE_SECONDS, fps=max(2.0, frames / SCENE_SECONDS))
    return [str(path) for path in paths]


def _measured(model: VideoModel, path: str, profile: Profile, settings: Settings, measurement: Measurement) -> Measured:
    """One measurement on one clip."""
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
        return measurement(model, prompt)
