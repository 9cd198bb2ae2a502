"""Unpack and dequantize in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from wq_kernels.layout import Block, codes_per_word


def unpack(block: Block, dtype: torch.dtype) -> Tensor:
    """See `wq_kernels.unpack`."""
    if block.is_raw:
        return block.data.to(dtype)
    assert block.scale is not None and block.minimum is not None
    batch, heads, tokens, count = block.data.shape
    compute, planes = torch.promote_types(dtype, torch.float32), codes_per_word(block.bits)
    values = torch.empty(batch, heads, tokens, count, planes, dtype=compute, device=block.data.device)
    for p in range(planes):
        values[..., p] = block.data >> (p * block.bits) & (2**block.bits - 1)
    grouped = values.view(batch, heads, block.windows, block.window, block.channels)
    grouped.mul_(block.scale.unsqueeze(3)).add_(block.minimum.unsqueeze(3))
    limit = torch.finfo(dtype).max
    return values.view(batch, heads, tokens, block.channels).clamp_(-limit, limit).to(dtype)
