"""LLaVA-NeXT-Video: LLaVA-1.6 trained on videos, each frame pooled to half its side, over Vicuna."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wq_cli.models.frames import FrameModel

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from wq_cli.models.base import VisualFeatures


class LlavaNextVideo(FrameModel):
    """One run of `<video>`, nothing between the frames."""

    model_type = "llava_next_video"

    @property
    def video_token_id(self) -> int:
        return int(self.model.config.video_token_id)

    def frame_tokens(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        clip: torch.Tensor = self.model.model.get_video_features(self.video_pixels(frames)[None]).pooler_output[0]
        return clip.reshape(len(frames), -1, clip.shape[-1])

    def visual_texts(self, visual: VisualFeatures) -> list[str]:
        return [self.placeholder * len(visual.embeds)]
