"""InternVL 2.5 to 3.5 (`-hf` checkpoints): InternViT, pixel shuffle to a quarter of the patches, Qwen or Llama."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wq_cli.models.frames import FrameModel, tokens_per_frame

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from wq_cli.models.base import VisualFeatures


class InternVL(FrameModel):
    """A line `FrameN: <img>...</img>` a frame, whose visual tokens are the `<IMG_CONTEXT>` of an image."""

    model_type = "internvl"
    words_between = 7  # </img>, a newline, "Frame2: " and <img>

    @property
    def video_token_id(self) -> int:
        return int(self.model.config.image_token_id)

    def frame_tokens(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        tokens: torch.Tensor = self.model.model.get_image_features(self.video_pixels(frames)).pooler_output
        return tokens

    def visual_texts(self, visual: VisualFeatures) -> list[str]:
        words = self.processor
        lines = [
            f"Frame{number}: {words.start_image_token}{words.image_token * count}{words.end_image_token}"
            for number, count in enumerate(tokens_per_frame(visual), 1)
        ]
        return ["\n".join(lines)]
