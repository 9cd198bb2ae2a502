"""Quantize, reorder and pack in plain PyTorch: the definition of the codes, and the path without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from wq_kernels.launch import PIECE_ELEMENTS
from wq_kernels.layout import Block, codes_per_word, words_per_window


def pack(x: Tensor, index: Tensor, *, bits: int, window: int, zero_point: str) -> Block:
    """See `wq_kernels.pack`."""
    batch, heads, _, channels = x.shape
    windows, words = index.shape[1] // window, words_per_window(window, bits)
    data = torch.empty(batch, heads, windows * words, channels, dtype=torch.int32, device=x.device)
    scale, minimum = (x.new_empty(batch, heads, windows, channels) for _ in range(2))
    # A quarter: quantizing holds four arrays of this size.
    step = max(1, PIECE_ELEMENTS // 4 // max(1, batch * heads * window * channels))
    for start in range(0, windows, step):
        stop = min(windows, start + step)
        piece = gather(x, index[:, start * window : stop * window])
        grouped = piece.view(batch, heads, stop - start, window, channels)
        scale[:, :, start:stop], minimum[:, :, start:stop], codes = quantize(grouped, bits, zero_point)
        data[:, :, start * words : stop * words] = pack_codes(codes, bits)
    return Block(bits, window, windows, data, scale, minimum)


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x [B, Hkv, L, D] in the order of index [B, T], contiguous [B, Hkv, T, D]."""
    batch, heads, _, channels = x.shape
    gathered = x.new_empty(batch, heads, index.shape[1], channels)
    for b in range(batch):
        torch.index_select(x[b], 1, index[b], out=gathered[b])
    return gathered


def quantize(x: Tensor, bits: int, zero_point: str) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric round-to-nearest codes of groups along the tokens of a window.

    Args:
        x: [B, Hkv, W, S, D]; one group is the S values of one window, head and channel.
        bits: Width of a code.
        zero_point: "float" or "integer", see `wq_kernels.pack`.

    Returns:
        Scale and minimum [B, Hkv, W, D] in x's dtype, codes [B, Hkv, W, S, D] int32 in [0, 2**bits - 1].
    """
    compute = torch.promote_types(x.dtype, torch.float32)
    # A tensor on x's device: a GPU divides by a plain number as it multiplies by its reciprocal, one bit off.
    top = torch.full((), 2**bits - 1, dtype=compute, device=x.device)
    low, high = (t.to(compute) for t in x.aminmax(dim=3))
    # Divided before the subtraction: the range itself can overflow.
    scale = (high / top - low / top).clamp(max=torch.finfo(x.dtype).max).to(x.dtype)
    step = scale.to(compute)
    divisor = torch.where(step > 0, step, torch.inf)
    if zero_point == "integer":
        zero = -torch.round(low / divisor)
        # The multiple of the scale that is nearest to the minimum may lie outside the dtype.
        limit = torch.finfo(x.dtype).max
        minimum = torch.where(step > 0, -step * zero, low).clamp(-limit, limit).to(x.dtype)
        codes = torch.round(x / divisor.unsqueeze(3)) + zero.unsqueeze(3)
    else:
        minimum = low.to(x.dtype)
        codes = torch.round((x - low.unsqueeze(3)) / divisor.unsqueeze(3))
    return scale, minimum, codes.clamp_(0, 2**bits - 1).to(torch.int32)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Words [B, Hkv, W * R, D] int32 of codes [B, Hkv, W, S, D] (layout.py draws them)."""
    batch, heads, windows, window, channels = codes.shape
    per_word, words = codes_per_word(bits), words_per_window(window, bits)
    padded = torch.nn.functional.pad(codes, (0, 0, 0, words * per_word - window))
    planes = padded.view(batch, heads, windows * words, per_word, channels)
    shifts = torch.arange(0, per_word * bits, bits, dtype=torch.int32, device=codes.device).view(per_word, 1)
    # The fields of a word do not overlap, so that their sum modulo 2**32 is their union.
    return (planes << shifts).sum(dim=3, dtype=torch.int32)
