"""Qwen2-VL, Qwen2.5-VL, Qwen3-VL: frames in pairs, sizes kept, rotary positions of time, height and width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.video_utils import VideoMetadata

from wq_cli.device import free_bytes
from wq_cli.models.base import FRAMES_PER_BATCH, VideoModel, VisualFeatures
from wq_cli.models.frames import frames_per_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# Times are given to transformers as frame numbers at this rate.
MILLISECONDS = 1000


class Qwen2VL(VideoModel):
    """One run of `<|video_pad|>`: the merged patches of each pair of frames, an odd last frame paired with itself.

    Frames keep their shape and, between the processor's least and most pixels, their size. Text counts on after a
    video from its larger side, not from its length.
    """

    model_type = "qwen2_vl"

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
        patches, grid = self._patches(frames)
        time, height, width = grid
        pairs = self.pairs_at_once(height * width)
        embeds, added = [], []
        for start in range(0, time, pairs):
            batch = patches[start : start + pairs]
            shape = torch.tensor([[len(batch), height, width]], device=self.device)
            output = self.model.model.visual(self._normalized(batch.flatten(0, 1)), grid_thw=shape)
            embeds.append(output.pooler_output)
            added.append(self._deepstack(output))
            on_frames(min(self._per_token * len(batch), len(frames) - self._per_token * start))
        deepstack = [tensor for tensor in added if tensor is not None]
        return VisualFeatures(
            torch.cat(embeds),
            self._frames_of(grid),
            pts_seconds,
            frames_per_token=self._per_token,
            grid=grid,
            deepstack=torch.cat(deepstack, dim=1) if deepstack else None,
        )

    def pairs_at_once(self, patches: int) -> int:
        """Pairs of frames of so many patches in one call of the vision tower."""
        if self.device.type != "cuda":
            return FRAMES_PER_BATCH // self._per_token
        vision = self.model.config.vision_config
        hidden = getattr(vision, "embed_dim", vision.hidden_size)  # where it exists, the other is the decoder's
        return frames_per_batch(
            tokens=patches,
            hidden=hidden,
            widest=getattr(vision, "intermediate_size", None) or int(hidden * vision.mlp_ratio),
            layers=vision.depth,
            itemsize=self.dtype.itemsize,
            free_bytes=free_bytes(self.device),
        )

    @property
    def _per_token(self) -> int:
        return int(self.processor.video_processor.temporal_patch_size)

    def _patches(self, frames: NDArray[np.uint8]) -> tuple[torch.Tensor, tuple[int, int, int]]:
        """Frames to patches of pairs, uint8 [time, height * width, numbers of a patch], and (time, height, width).

        The processor gets all frames at once, since their size may depend on how many there are. Numbers of 32 bits,
        and the tower, see a batch of pairs at a time: attention there stays within a pair.
        """
        paired = frames if len(frames) >= self._per_token else frames.repeat(self._per_token, axis=0)
        inputs = self.processor.video_processor(
            videos=[paired], do_rescale=False, do_normalize=False, do_sample_frames=False, return_tensors="pt"
        )
        time, height, width = inputs["video_grid_thw"][0].tolist()
        return inputs["pixel_values_videos"].unflatten(0, (time, height * width)), (time, height, width)

    def _normalized(self, patches: torch.Tensor) -> torch.Tensor:
        """Patches [n, numbers] as the tower gets them, by the processor's own arithmetic on their channels."""
        settings = self.processor.video_processor
        mean, std = tuple(settings.image_mean), tuple(settings.image_std)
        channels = patches.to(self.device).unflatten(1, (len(mean), -1, 1))
        normalized = settings.rescale_and_normalize(
            channels, settings.do_rescale, settings.rescale_factor, settings.do_normalize, mean, std
        )
        return normalized.flatten(1).to(self.dtype)

    def _frames_of(self, grid: tuple[int, int, int]) -> NDArray[np.int64]:
        """First frame of each visual token, [M]."""
        time, height, width = grid
        per_pair = height * width // self.model.config.vision_config.spatial_merge_size**2
        return np.repeat(np.arange(time) * self._per_token, per_pair)

    def frame_of_tokens(self, frames: NDArray[np.uint8], pts_seconds: NDArray[np.float64]) -> NDArray[np.int64]:
        return self._frames_of(self._patches(frames)[1])

    def _deepstack(self, output: Any) -> torch.Tensor | None:
        """What the tower gives for the first decoder layers, [layers, M, D]."""
        return None

    def visual_texts(self, visual: VisualFeatures) -> list[str]:
        inputs = {"video_grid_thw": torch.tensor([visual.grid]), "video_metadata": [_metadata(visual.pts_seconds)]}
        return [self.processor.replace_video_token(inputs, video_idx=0)]

    def positions(self, visual_mask: torch.Tensor, visual: VisualFeatures) -> torch.Tensor:
        kinds = 2 * visual_mask[None].int()  # 2 is a video for transformers, 0 a text
        positions, _ = self.model.model.get_rope_index(
            torch.zeros_like(kinds, dtype=torch.int64),  # which text it is does not matter
            mm_token_type_ids=kinds,
            video_grid_thw=torch.tensor([visual.grid], device=visual_mask.device),
            second_per_grid_ts=[visual.frames_per_token * _seconds_between(visual.pts_seconds)],
        )
        return positions[:, 0]


class Qwen2_5_VL(Qwen2VL):
    """As Qwen2-VL, but positions along time follow the seconds between frames."""

    model_type = "qwen2_5_vl"


class Qwen3VL(Qwen2VL):
    """Every pair of frames has its own grid and a time stamp before it; DeepStack adds to the first decoder layers."""

    model_type = "qwen3_vl"
    words_between = 9  # <12.5 seconds>, the end of one pair and the start of the next

    def _deepstack(self, output: Any) -> torch.Tensor | None:
        return torch.stack(output.deepstack_features)

    def deepstack_inputs(self, visual_mask: torch.Tensor, deepstack: torch.Tensor) -> dict[str, Any]:
        return {"visual_pos_masks": visual_mask, "deepstack_visual_embeds": list(deepstack)}


def _metadata(pts_seconds: NDArray[np.float64]) -> VideoMetadata:
    """Frame times as transformers wants them."""
    numbers = np.rint(pts_seconds * MILLISECONDS).astype(int).tolist()
    return VideoMetadata(total_num_frames=numbers[-1] + 1, fps=MILLISECONDS, frames_indices=numbers)


def _seconds_between(pts_seconds: NDArray[np.float64]) -> float:
    """Mean seconds from frame to frame, to the millisecond so that even steps do not fall short of whole numbers."""
    if len(pts_seconds) < 2:
        return 1.0
    return round(float(pts_seconds[-1] - pts_seconds[0]) / (len(pts_seconds) - 1), 3)
