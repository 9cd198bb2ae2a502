"""LLaVA-1.6 (LLaVA-NeXT): LLaVA-1.5 with tiles for large images, over Vicuna or Mistral. Frames are not tiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from wq_cli.models.frames import tower_features
from wq_cli.models.llava import Llava

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LlavaNext(Llava):
    """The whole picture of each frame, without tiles, and the newline token that closes an image of one piece."""

    model_type = "llava_next"

    def frame_tokens(self, frames: NDArray[np.uint8]) -> torch.Tensor:
        config, inner = self.model.config, self.model.model
        side = config.vision_config.image_size
        # The processor always adds tiles to the whole picture, which comes first; a grid of one tile is the cheapest.
        pieces = self.processor.image_processor(
            images=list(frames), image_grid_pinpoints=[[side, side]], return_tensors="pt"
        )["pixel_values"]
        features = inner.multi_modal_projector(tower_features(self.model, pieces[:, 0].to(self.device, self.dtype)))
        packed, _ = inner.pack_image_features(
            features[:, None],
            image_sizes=None,  # of tiles alone
            vision_feature_select_strategy=config.vision_feature_select_strategy,
            image_newline=inner.image_newline,
        )
        return torch.stack(packed)
