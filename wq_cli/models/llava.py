"""LLaVA-1.5: CLIP tower, two-layer projector, Vicuna. It knows no video: every frame is an image of the question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from wq_cli.models.frames import FrameModel, tokens_per_frame

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wq_cli.models.base import VisualFeatures


class Llava(FrameModel):
    """One run of `<image>` a frame, with the template's newline between them."""

    model_type = "llava"
    content_type = "image"
    words_between = 1  # the template's newline

    @property
    def placeholder(self) -> str:
        return str(self.processor.image_token)

    @property
    def video_token_id(self) -> int:
        return int(self.model.config.image_token_id)

    def frame_tokens(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        pixels = self.processor.image_processor(images=list(frames), return_tensors="pt")["pixel_values"]
        features = self.model.model.get_image_features(pixels.to(self.device, self.dtype))
        return torch.stack(list(features.pooler_output))

    def visual_texts(self, visual: VisualFeatures) -> list[str]:
        return [self.placeholder * count for count in tokens_per_frame(visual)]
