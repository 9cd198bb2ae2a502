"""SmolVLM2: SigLIP tower, pixel shuffle, one linear layer, SmolLM2 (Llama)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from wq_cli.models.frames import FrameModel, tokens_per_frame

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from wq_cli.models.base import VisualFeatures


class SmolVLM(FrameModel):
    """A sentence on the clip, then per frame its time and its tokens between special ones."""

    model_type = "smolvlm"
    words_between = 14  # the special tokens around a frame and "Frame from 00:12:" on a line of its own

    @property
    def decoder(self) -> Any:
        return self.model.model.text_model

    @property
    def video_token_id(self) -> int:
        return int(self.model.config.image_token_id)

    def frame_tokens(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        inner = self.model.model
        tokens: torch.Tensor = inner.connector(inner.vision_model(self.video_pixels(frames)).last_hidden_state)
        return tokens

    def frame_of_tokens(self, frames: NDArray[np.uint8], pts_seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        # Without weights its tower does not run: it looks at the values of its mask.
        return np.repeat(np.arange(len(frames)), self.model.model.image_seq_len)

    def visual_texts(self, visual: VisualFeatures) -> list[str]:
        """The processor's own sentences. The length of the video is the time of its last frame, as is the processor's
        where it is not told more."""
        from num2words import num2words
        from transformers.models.smolvlm import processing_smolvlm as wording

        words, seconds = self.processor, visual.pts_seconds.astype(int)
        around = words.fake_image_token
        text = wording.DEFAULT_VIDEO_INTRO.format(
            frame_count=num2words(len(seconds)), video_duration=timedelta(seconds=int(seconds[-1]))
        )
        for second, count in zip(seconds, tokens_per_frame(visual), strict=True):
            text += wording.FRAME_TIMESTAMP_MESSAGE.format(timestamp=f"{second // 60:02d}:{second % 60:02d}")
            text += f"{around}{words.global_image_token}{words.image_token * count}{around}"
        return [text + wording.DEFAULT_MEDIA_OUTTRO]
