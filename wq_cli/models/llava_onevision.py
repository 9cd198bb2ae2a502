"""LLaVA-OneVision: SigLIP tower, two-layer projector, bilinear pooling of each frame to half its side, Qwen2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli.models.base import FRAMES_PER_BATCH, VideoModel, VisualFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class LlavaOnevision(VideoModel):
    """One run of `<video>` placeholders: the pooled tokens of every frame, then one newline token."""

    model_type = "llava_onevision"

    @property
    def decoder(self) -> Any:
        return self.model.model.language_model

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
        pooled = []
        for start in range(0, len(frames), FRAMES_PER_BATCH):
            batch = frames[start : start + FRAMES_PER_BATCH]
            pixels = self.processor.video_processor(videos=[batch], do_sample_frames=False, return_tensors="pt")
            pooled.append(self._tokens(pixels["pixel_values_videos"][0].to(self.device, self.dtype)))
            on_frames(len(batch))
        tokens = torch.cat(pooled)
        newline = self.model.model.image_newline[None].to(tokens.dtype)
        frame_of_token = np.append(np.repeat(np.arange(len(tokens)), tokens.shape[1]), -1)
        return VisualFeatures(torch.cat([tokens.flatten(0, 1), newline]), frame_of_token)

    def _tokens(self, pixels: torch.Tensor) -> torch.Tensor:
        """Pixels [F, 3, H, W] to pooled tokens [F, P, D]."""
        config, inner = self.model.config, self.model.model
        hidden = inner.vision_tower(pixels, output_hidden_states=True).hidden_states
        chosen = config.vision_feature_layer
        features = torch.cat([hidden[layer] for layer in ([chosen] if isinstance(chosen, int) else chosen)], dim=-1)
        if config.vision_feature_select_strategy == "default":
            features = features[:, 1:]
        tokens: torch.Tensor = inner.apply_pooling(inner.multi_modal_projector(features))
        return tokens

    def prompt_ids(self, question: str, visual: VisualFeatures) -> torch.Tensor:
        content = [{"type": "video"}, {"type": "text", "text": question}]
        conversation = [{"role": "user", "content": content}]
        text = self.processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        placeholder = self.processor.video_token
        before, after = text.split(placeholder, maxsplit=1)
        text = before + placeholder * len(visual.embeds) + after
        return torch.tensor(self.processor.tokenizer(text)["input_ids"], dtype=torch.int64)
