"""What families have in common whose vision tower sees every frame alone and gives each equally many tokens."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli.models.base import FRAMES_PER_BATCH, VideoModel, VisualFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class FrameModel(VideoModel):
    """Frames through the vision tower in batches; their tokens in the order of time."""

    @property
    def decoder(self) -> Any:
        return self.model.model.language_model

    @abstractmethod
    def frame_tokens(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        """RGB frames [F, H, W, 3] to visual tokens [F, P, D]."""

    @torch.inference_mode()
    def encode(
        self,
        frames: NDArray[np.uint8],
        pts_seconds: NDArray[np.float64],
        on_frames: Callable[[int], None] = lambda count: None,
    ) -> VisualFeatures:
        batches = []
        for start in range(0, len(frames), FRAMES_PER_BATCH):
            batch = frames[start : start + FRAMES_PER_BATCH]
            batches.append(self.frame_tokens(batch))
            on_frames(len(batch))
        tokens = torch.cat(batches)
        return VisualFeatures(tokens.flatten(0, 1), np.repeat(np.arange(len(tokens)), tokens.shape[1]), pts_seconds)

    def video_pixels(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        """Frames as the video processor prepares them, [F, 3, H, W]. They were chosen already: it samples nothing."""
        prepared = self.processor.video_processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
        # The name of the pixels is the model's, which is not always that of a video.
        (name,) = (name for name in prepared if name.startswith("pixel_values"))
        pixels: torch.Tensor = prepared[name][0].to(self.device, self.dtype)
        return pixels


def tokens_per_frame(visual: VisualFeatures) -> list[int]:
    """Visual tokens of each frame."""
    counts: list[int] = np.bincount(visual.frames[visual.frames >= 0], minlength=len(visual.pts_seconds)).tolist()
    return counts


def tower_features(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """What the config takes from a CLIP or SigLIP tower: layers side by side, without the class token if so chosen.

    Args:
        model: A transformers model of the LLaVA line.
        pixels: [F, 3, H, W].

    Returns:
        [F, patches, layers x width of the tower].
    """
    config = model.config
    hidden = model.model.vision_tower(pixels, output_hidden_states=True).hidden_states
    chosen = config.vision_feature_layer
    features = torch.cat([hidden[layer] for layer in ([chosen] if isinstance(chosen, int) else chosen)], dim=-1)
    return features[:, 1:] if config.vision_feature_select_strategy == "default" else features
