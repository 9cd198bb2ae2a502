"""What families have in common whose vision tower sees every frame alone and gives each equally many tokens."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli.device import free_bytes, to_device
from wq_cli.models.base import FRAMES_PER_BATCH, VideoModel, VisualFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

# More frames at a time would not make a GPU faster, and progress would come in fewer steps.
MAX_FRAMES_PER_BATCH = 64
# Share of the free memory that the vision tower may fill: the prefill needs memory too, and allocators leave gaps.
MEMORY_SHARE = 0.5


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
        count = self.frames_at_once()
        for start in range(0, len(frames), count):
            batch = frames[start : start + count]
            with self.lock:
                batches.append(self.frame_tokens(batch))
            on_frames(len(batch))
        tokens = torch.cat(batches)
        return VisualFeatures(tokens.flatten(0, 1), np.repeat(np.arange(len(tokens)), tokens.shape[1]), pts_seconds)

    def frames_at_once(self) -> int:
        """Frames of one call of the vision tower."""
        if self.device.type != "cuda":
            return FRAMES_PER_BATCH
        config = self.model.config
        vision, width = config.vision_config, config.get_text_config().hidden_size
        return frames_per_batch(
            tokens=int(np.prod(np.broadcast_to(vision.image_size, 2) // vision.patch_size)),
            hidden=vision.hidden_size,
            widest=max(vision.intermediate_size, width),
            layers=vision.num_hidden_layers,
            itemsize=self.dtype.itemsize,
            free_bytes=free_bytes(self.device),
        )

    def video_pixels(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        """Frames as the video processor prepares them, [F, 3, H, W]. They were chosen already: it samples nothing."""
        processor = self.processor.video_processor
        video = torch.from_numpy(frames)
        if self.device.type == "cuda" and has_fixed_size(processor):
            video = resized_in_width(processor, to_device(video, self.device).permute(0, 3, 1, 2))
        else:
            video = video.permute(0, 3, 1, 2)
        prepared = processor(videos=[video], do_sample_frames=False, return_tensors="pt")
        # The name of the pixels is the model's, which is not always that of a video.
        (name,) = (name for name in prepared if name.startswith("pixel_values"))
        pixels: torch.Tensor = prepared[name][0].to(self.device, self.dtype)
        return pixels


def frames_per_batch(*, tokens: int, hidden: int, widest: int, layers: int, itemsize: int, free_bytes: int) -> int:
    """Frames that a vision tower may take in one call.

    Args:
        tokens: Patches of a frame.
        hidden: Width of the tower.
        widest: Width of its MLP or of the projector behind it, whichever is wider.
        layers: Layers of the tower. Their outputs are counted, since transformers may keep all of them.
        itemsize: Bytes of a number.
        free_bytes: Memory that is free on the device.

    Returns:
        Between 1 and `MAX_FRAMES_PER_BATCH`.
    """
    # In the MLP: the residual stream and its norm, then what enters and leaves the activation function and one more.
    of_token = (2 + layers) * hidden + 3 * widest
    fits = int(free_bytes * MEMORY_SHARE) // (tokens * of_token * itemsize)
    return max(1, min(fits, MAX_FRAMES_PER_BATCH))


def has_fixed_size(processor: Any) -> bool:
    """Whether a video processor squeezes every frame to one height and width, and does no more to its shape."""
    size = processor.size
    return bool(processor.do_resize and size.height and size.width and not processor.do_center_crop)


def resized_in_width(processor: Any, video: torch.Tensor) -> torch.Tensor:
    """The first half of a video processor's resize, uint8 [F, 3, H, W] to [F, 3, H, width].

    On a CPU pixels are resized in width, rounded and clamped to 8 bits, then resized in height. On CUDA they are
    rounded once at the end: where bicubic weights overshoot at an edge, values are up to 25 apart. In two calls both
    give the same, up to the rounding of ties.
    """
    size = {"height": video.shape[2], "width": processor.size.width}
    half = processor(
        videos=[video], size=size, do_rescale=False, do_normalize=False, do_sample_frames=False, return_tensors="pt"
    )
    (pixels,) = half.values()
    narrowed: torch.Tensor = pixels[0]
    return narrowed


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
    chosen = config.vision_feature_layer
    hidden = _hidden_states(model.model.vision_tower, pixels, [chosen] if isinstance(chosen, int) else chosen)
    features = hidden[0] if len(hidden) == 1 else torch.cat(hidden, dim=-1)
    return features[:, 1:] if config.vision_feature_select_strategy == "default" else features


def _hidden_states(tower: Any, pixels: torch.Tensor, chosen: list[int]) -> list[torch.Tensor]:
    """`tower(pixels, output_hidden_states=True).hidden_states[i]` of the chosen i, without holding the others.

    The first is what enters the layers, the last is what leaves them, before the tower's last norm. For one thread at a
    time: hooks hear of every call.
    """
    layers = next(module for module in tower.modules() if isinstance(module, torch.nn.ModuleList))
    indices = [range(len(layers) + 1)[i] for i in chosen]
    found: dict[int, torch.Tensor] = {}

    def keep(index: int) -> Callable[..., None]:
        def hook(layer: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
            found[index] = output if index else inputs[0]

        return hook

    hooks = [layers[max(index - 1, 0)].register_forward_hook(keep(index)) for index in set(indices)]
    try:
        tower(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return [found[index] for index in indices]
