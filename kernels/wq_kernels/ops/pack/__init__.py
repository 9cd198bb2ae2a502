"""Quantize, reorder and pack: from the keys or values of a layer to a block."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from wq_kernels.dispatch import choose_backend
from wq_kernels.layout import RAW_BITS, Block, check_bits, check_source
from wq_kernels.ops.pack import naive

ZERO_POINTS = ("float", "integer")


def pack(
    x: Tensor, index: Tensor, *, bits: int, window: int, zero_point: Literal["float", "integer"] = "float"
) -> Block:
    """Store chosen tokens, in a chosen order, at a width.

    Each group (the tokens of one window, for one KV head and channel) gets scale = (max - min) / (2**bits - 1) and
    minimum = min, both rounded to float16; codes are round((x - minimum) / scale), half to even, computed in float32
    from the rounded pair. A constant group gets scale 0 and comes back as float16 holds it.

    With an integer zero point, z = -round(min / scale) and codes are round(x / scale) + z. What is stored is
    minimum = -scale * z, so that every reader sees the same format; its rounding to float16 adds an error of at most
    half a unit in its last place.

    Args:
        x: Keys or values [B, Hkv, L, D], float32, float16 or bfloat16; any strides with unit stride along D.
        index: Source token of each stored token [B, W * S], int64, values in [0, L); on a GPU they are not checked.
        bits: 2, 4, 8, or 16 for a copy of the values as they are.
        window: S, tokens per window.
        zero_point: "float" keeps the minimum; "integer" makes it a multiple of the scale.

    Returns:
        A block of W windows.

    Raises:
        ValueError: A width, a shape or a dtype is not as above.

    Source: WindowQuant (arXiv 2605.02262), equations 14 to 16, with the group of a window taken per channel.
    """
    check_bits(bits)
    if zero_point not in ZERO_POINTS:
        raise ValueError(f"zero_point must be one of {', '.join(ZERO_POINTS)}, not {zero_point}")
    check_source(x, index, window)
    if bits == RAW_BITS:
        return Block(bits, window, x.shape[3], naive.gather(x, index))
    if choose_backend(x.device, x.dtype).name == "torch":
        return naive.pack(x, index, bits=bits, window=window, zero_point=zero_point)
    from wq_kernels.ops.pack import kernel

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        return kernel.pack(x, index, bits=bits, window=window, zero_point=zero_point)
