"""Unpack: the values that a block stands for."""

from __future__ import annotations

import torch
from torch import Tensor

from wq_kernels.dispatch import choose_backend
from wq_kernels.layout import Block
from wq_kernels.ops.unpack import naive


def unpack(block: Block, dtype: torch.dtype) -> Tensor:
    """Dequantize a whole block: scale * code + minimum, computed in float32.

    Args:
        block: W windows of S tokens.
        dtype: Of the result. Values beyond its range become its largest.

    Returns:
        [B, Hkv, W * S, D] in stored order.
    """
    if block.is_raw or choose_backend(block.data.device, dtype).name == "torch":
        return naive.unpack(block, dtype)
    from wq_kernels.ops.unpack import kernel

    with torch.cuda.device_of(block.data):  # type: ignore[no-untyped-call]
        return kernel.unpack(block, dtype)
