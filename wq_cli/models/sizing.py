"""What a model takes, known before any weights are read."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from wq_cli.models import family_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wq_cli.config import Weights
    from wq_cli.models.base import VideoModel

# NF4 with a second quantization: 4 bits, one byte per 64 weights, one float32 per 256 of these bytes.
FOUR_BIT_BYTES = 1 / 2 + 1 / 64 + 4 / (64 * 256)


def outline(config: Any, processor: Any) -> VideoModel:
    """A model on PyTorch's `meta` device: every shape, no weights, built in a tenth of a second.

    Args:
        config: Its transformers configuration.
        processor: Its processor.
    """
    import transformers

    from wq_cli.models.loading import wrap

    module, adapter, model_class = family_of(config.model_type)
    with torch.device("meta"):
        # SDPA would look at the values of some masks, which are not there.
        model = getattr(transformers, model_class)._from_config(deepcopy(config), attn_implementation="eager")
    return wrap(module, adapter, model.eval(), processor)


def other_linears(model: VideoModel) -> list[str]:
    """Names of the linear layers outside the decoder's layers, which 4-bit weights leave alone: quantizing the vision
    tower and the head saves little and costs most."""
    inside = {id(part) for part in model.decoder.layers.modules()}
    named = model.model.named_modules()
    return [name for name, part in named if isinstance(part, torch.nn.Linear) and id(part) not in inside]


def weight_bytes(model: VideoModel, dtype: torch.dtype, weights: Weights) -> int:
    """Bytes of a model's weights when they are loaded.

    Args:
        model: It, or its outline.
        dtype: What it runs in.
        weights: Whether the decoder's linear layers are stored in 4 bits.
    """
    total = sum(parameter.numel() for parameter in model.model.parameters())
    packed = 0
    if weights == "4bit":
        parts = model.decoder.layers.modules()
        packed = sum(part.weight.numel() for part in parts if isinstance(part, torch.nn.Linear))
    return int((total - packed) * dtype.itemsize + packed * FOUR_BIT_BYTES)


@dataclass(frozen=True)
class VisualCost:
    """Visual tokens of clips of one frame size.

    Attributes:
        unit_tokens: Of a frame, or of the frames that a model joins.
        unit_frames: How many it joins.
        other_tokens: Of a clip, however long it is.
    """

    unit_tokens: int
    unit_frames: int
    other_tokens: int

    @classmethod
    def of(cls, model: VideoModel, frames: NDArray[np.uint8], pts_seconds: NDArray[np.float64]) -> VisualCost:
        """Measured on the first two frames of a clip, which may be blank.

        Args:
            model: It, or its outline.
            frames: RGB, [2, H, W, 3], or [1, H, W, 3] of a clip that has no more.
            pts_seconds: Their times.
        """
        owners = model.frame_of_tokens(frames, pts_seconds)
        units = len(np.unique(owners[owners >= 0]))
        of_frames = int((owners >= 0).sum())
        return cls(of_frames // units, len(frames) // units, len(owners) - of_frames)

    def tokens(self, frames: int) -> int:
        return -(-frames // self.unit_frames) * self.unit_tokens + self.other_tokens

    def frames(self, tokens: int) -> int:
        """The most frames that have no more tokens."""
        return max(0, tokens - self.other_tokens) // self.unit_tokens * self.unit_frames


def kv_bytes_per_token(text_config: Any, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token in all layers at full precision."""
    from wq_cli.engine import kv_shape

    heads, dim = kv_shape(text_config)
    return 2 * int(text_config.num_hidden_layers) * heads * dim * dtype.itemsize
