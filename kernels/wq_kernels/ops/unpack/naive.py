"""Unpack and dequantize in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor

from wq_kernels.layout import Block, codes_per_word, words_per_window


def unpack(block: Block, dtype: torch.dtype) -> Tensor:
    """See `wq_kernels.unpack`."""
    if block.is_raw:
        return block.data.to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    limit = torch.finfo(dtype).max
    return dequantize(block, 0, block.windows, Scratch(block.data.device, wide)).clamp(-limit, limit).to(dtype)


class Scratch:
    """Buffers that the chunks of one call share; a fresh large allocation per chunk would cost more than the work.

    Args:
        device: Where the buffers live.
        dtype: Of dequantized values, float32 or float64.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._codes = torch.empty(0, dtype=torch.int32, device=device)
        self._values = torch.empty(0, dtype=dtype, device=device)

    def codes(self, *shape: int) -> Tensor:
        """An uninitialised int32 tensor; the previous one becomes invalid."""
        self._codes, view = _view(self._codes, shape)
        return view

    def values(self, *shape: int) -> Tensor:
        """An uninitialised tensor of the dtype; the previous one becomes invalid."""
        self._values, view = _view(self._values, shape)
        return view

    def convert(self, tensor: Tensor) -> Tensor:
        """The tensor itself where it has the dtype, else a copy that takes the place of the previous `values`."""
        return tensor if tensor.dtype == self.dtype else self.values(*tensor.shape).copy_(tensor)


def _view(buffer: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    size = torch.Size(shape).numel()
    if buffer.numel() < size:
        buffer = buffer.new_empty(size)
    return buffer, buffer[:size].view(shape)


def dequantize(block: Block, start: int, stop: int, scratch: Scratch) -> Tensor:
    """Values of windows [start, stop) in the scratch's dtype: scale * code + minimum.

    Returns:
        [B, Hkv, (stop - start) * S, D], valid until the scratch is used again. Raw values that have the dtype already
        come as a view of the block.
    """
    batch, heads, _, channels = block.data.shape
    windows, window = stop - start, block.window
    if block.is_raw:
        return scratch.convert(block.data[:, :, start * window : stop * window])
    assert block.scale is not None and block.minimum is not None
    per_word, words = codes_per_word(block.bits), words_per_window(window, block.bits)
    data = block.data[:, :, start * words : stop * words]
    shifts = torch.arange(0, per_word * block.bits, block.bits, dtype=torch.int32, device=data.device).view(per_word, 1)
    codes = scratch.codes(batch, heads, windows * words, per_word, channels)
    torch.bitwise_right_shift(data.unsqueeze(3), shifts, out=codes)
    codes &= 2**block.bits - 1
    values = scratch.values(batch, heads, windows, window, channels)
    values.copy_(codes.view(batch, heads, windows, words * per_word, channels)[:, :, :, :window])
    values.mul_(block.scale[:, :, start:stop, None]).add_(block.minimum[:, :, start:stop, None])
    return values.view(batch, heads, windows * window, channels)
