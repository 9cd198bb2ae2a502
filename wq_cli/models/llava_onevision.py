"""LLaVA-OneVision: SigLIP tower, two-layer projector, bilinear pooling of each frame to half its side, Qwen2."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from wq_cli.models.base import VisualFeatures
from wq_cli.models.frames import FrameModel, tower_features
from wq_cli.models.pooling import halve

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class LlavaOnevision(FrameModel):
    """One run of `<video>` placeholders: the pooled tokens of every frame, then one newline token."""

    model_type = "llava_onevision"

    @property
    def video_token_id(self) -> int:
        return int(self.model.config.video_token_id)

    @torch.inference_mode()
    def encode(
        self,
        frames: NDArray[np.uint8],
        pts_seconds: NDArray[np.float64],
        on_frames: Callable[[int], None] = lambda count: None,
    ) -> VisualFeatures:
        clip = super().encode(frames, pts_seconds, on_frames)
        newline = self.model.model.image_newline[None].to(clip.embeds)
        return VisualFeatures(torch.cat([clip.embeds, newline]), np.append(clip.frames, -1), pts_seconds)

    def frame_tokens(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        inner = self.model.model
        features = inner.multi_modal_projector(tower_features(self.model, self.video_pixels(frames)))
        side = self.model.config.vision_config.image_size // self.model.config.vision_config.patch_size
        return halve(features, side, side)

    def visual_texts(self, visual: VisualFeatures) -> list[str]:
        return [self.placeholder * len(visual.embeds)]
