"""Which profiles fit on a machine: weights, and the cache of as many frames as a profile takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from wq_cli.bench import random_weights
from wq_cli.config import Runtime, Settings
from wq_cli.models import hub, loading, sizing
from wq_cli.pipeline import DEMO_MODEL
from wq_cli.scenes import WEIGHTS
from wq_cli.video.picture import fit as fit_side

if TYPE_CHECKING:
    from wq_cli.models.base import VideoModel
    from wq_cli.profile import Profile

# What a typical video is shrunk to.
FULL_HD = (1920, 1080)
# Activations of the prefill and what the allocator cannot use, as a share of weights and cache: ours, a rough figure.
MARGIN = 0.1


@dataclass(frozen=True)
class ProfileFit:
    """What a profile takes; None where its model is not known on this computer.

    Attributes:
        is_here: Whether its model is on this computer.
        weight_bytes, weight_bytes_4bit: Of all weights, and with the decoder's in 4 bits.
        kv_bytes_per_frame: Keys and values of a frame of a Full HD video before they are quantized.
        frames: What the profile takes of a video.
        fits: Weights and cache of these frames in the free memory: with `full` weights, with `4bit` ones, or `no`.
    """

    name: str
    is_here: bool
    weight_bytes: int | None
    weight_bytes_4bit: int | None
    kv_bytes_per_frame: int | None
    frames: int
    fits: Literal["full", "4bit", "no"] | None


def examine(profile: Profile, dtype: torch.dtype, free_bytes: int | None) -> ProfileFit:
    """What a profile takes and whether a device has it.

    Args:
        profile: Its model need not be on this computer when the profile says its architecture.
        dtype: What it would run in.
        free_bytes: Of the device; None when unknown.
    """
    is_here = _folder(profile) is not None
    model = _outline(profile)
    if model is None:
        return ProfileFit(profile.name, is_here, None, None, None, profile.frames, None)
    width, height = fit_side(*FULL_HD, profile.max_side)
    cost = sizing.VisualCost.of(model, np.zeros((2, height, width, 3), np.uint8), np.arange(2.0))
    full, packed = sizing.weight_bytes(model, dtype, "full"), sizing.weight_bytes(model, dtype, "4bit")
    per_token = sizing.kv_bytes_per_token(model.text_config, dtype)
    cache = per_token * cost.tokens(profile.frames)
    fits: Literal["full", "4bit", "no"] | None = None
    if free_bytes is not None:
        room = free_bytes / (1 + MARGIN) - cache
        fits = "full" if full <= room else "4bit" if packed <= room else "no"
    per_frame = per_token * cost.unit_tokens // cost.unit_frames
    return ProfileFit(profile.name, is_here, full, packed, per_frame, profile.frames, fits)


def _folder(profile: Profile) -> str | None:
    """Where the profile's model is on this computer."""
    if profile.model == DEMO_MODEL:
        return str(WEIGHTS)
    found = hub.find(profile.model, profile.revision) if hub.is_repository(profile.model) else profile.model
    return None if found is None else str(found)


def _outline(profile: Profile) -> VideoModel | None:
    """The model without weights: of the profile's architecture, else of the folder it is in."""
    if profile.architecture is not None:
        return random_weights.build(profile, Settings(runtime=Runtime(device="meta")))
    folder = _folder(profile)
    return None if folder is None else loading.open_checkpoint(folder).outline
