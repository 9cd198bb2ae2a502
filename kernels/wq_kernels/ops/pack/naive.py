"""Quantize, reorder and pack in plain PyTorch: the definition of the codes, and the path without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from wq_kernels.launch import PIECE_ELEMENTS
from wq_kernels.layout import METADATA_DTYPE, Block, codes_per_word, words_per_token


def pack(x: Tensor, index: Tensor, *, bits: int, window: int, zero_point: str) -> Block:
    """See `wq_kernels.pack`."""
    batch, heads, _, channels = x.shape
    windows = index.shape[1] // window
    data = x.new_empty(batch, heads, windows * window, words_per_token(channels, bits), dtype=torch.int16)
    scale, minimum = (x.new_empty(batch, heads, windows, channels, dtype=METADATA_DTYPE) for _ in range(2))
    # A quarter: quantizing holds four arrays of this size.
    step = max(1, PIECE_ELEMENTS // 4 // max(1, batch * heads * window * channels))
    for start in range(0, windows, step):
        stop = min(windows, start + step)
        piece = gather(x, index[:, start * window : stop * window])
        grouped = piece.view(batch, heads, stop - start, window, channels)
        scale[:, :, start:stop], minimum[:, :, start:stop], codes = quantize(grouped, bits, zero_point)
        data[:, :, start * window : stop * window] = pack_codes(codes.flatten(2, 3), bits)
    return Block(bits, window, channels, data, scale, minimum)


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
        Scale and minimum float16 [B, Hkv, W, D], codes [B, Hkv, W, S, D] int32 in [0, 2**bits - 1].
    """
    compute = torch.promote_types(x.dtype, torch.float32)
    # A tensor on x's device: a GPU divides by a plain number as it multiplies by its reciprocal, one bit off.
    top = torch.full((), 2**bits - 1, dtype=compute, device=x.device)
    low, high = (t.to(compute) for t in x.aminmax(dim=3))
    # Divided before the subtraction: the range itself can overflow.
    limit = torch.finfo(METADATA_DTYPE).max
    scale = (high / top - low / top).clamp(max=limit).to(METADATA_DTYPE)
    step = scale.to(compute)
    divisor = torch.where(step > 0, step, torch.inf)
    if zero_point == "integer":
        zero = -torch.round(low / divisor)
        minimum = torch.where(step > 0, -step * zero, low).clamp(-limit, limit).to(METADATA_DTYPE)
        codes = torch.round(x / divisor.unsqueeze(3)) + zero.unsqueeze(3)
    else:
        minimum = low.clamp(-limit, limit).to(METADATA_DTYPE)
        codes = torch.round((x - minimum.to(compute).unsqueeze(3)) / divisor.unsqueeze(3))
    return scale, minimum, codes.clamp_(0, 2**bits - 1).to(torch.int32)


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Words int16 [..., C] of codes int32 [..., D] (layout.py says which code goes where)."""
    planes = codes.unflatten(-1, (-1, codes_per_word(bits))).unbind(-1)
    words = planes[0].clone()
    for p, plane in enumerate(planes[1:], start=1):
        # The fields of a word do not overlap.
        words |= plane << (p * bits)
    return words.to(torch.int16)
