"""Fit, reorder and pack: from the keys or values of a layer to a block whose numbers suit what reads them.

Three things that rounding between minimum and maximum does not do, and that cost no bit: scale and minimum by weighted
least squares, tokens that are looked at more counting more; a start inside the range, where that fits better; and codes
chosen channel after channel, each making good for the error of those before it as queries see it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wq_kernels.dispatch import choose_backend
from wq_kernels.layout import Block, check_source
from wq_kernels.ops.fit import naive
from wq_kernels.ops.fit.compensation import Compensation

# At more bits rounding is no longer what limits.
FITTED_BITS = (2, 4)


def fit(
    x: Tensor, index: Tensor, weights: Tensor, *, bits: int, window: int, compensation: Compensation | None = None
) -> Block:
    """Store chosen tokens, in a chosen order, in codes that are fitted to them.

    For each group (the tokens of one window, for one KV head and channel) scale and minimum are those with the least
    weighted squared error that a few rounds find: codes for a pair, the least-squares pair for the codes, and so on, as
    Lloyd's algorithm does for free levels. The weighted mean of a group's errors becomes 0, so that wide attention does
    not see them. A constant group gets scale 0.

    Args:
        x: Keys or values [B, Hkv, L, D], float32, float16 or bfloat16; any strides with unit stride along D.
        index: Source token of each stored token [B, W * S], int64, values in [0, L); on a GPU they are not checked.
        weights: How much each token of x counts, float32 [B, Hkv, L], not negative; only ratios inside a window matter.
        bits: 2 or 4.
        window: S, tokens per window.
        compensation: What makes good for the errors of codes; None rounds every channel alone.

    Returns:
        A block of W windows.

    Raises:
        ValueError: A width, a shape or a dtype is not as above.
    """
    if bits not in FITTED_BITS:
        raise ValueError(f"bits must be one of {', '.join(map(str, FITTED_BITS))}, not {bits}")
    check_source(x, index, window)
    batch, heads, length, channels = x.shape
    if weights.dtype != torch.float32 or weights.shape != (batch, heads, length):
        expected = f"float32 {[batch, heads, length]}"
        raise ValueError(f"weights must be {expected}, not {weights.dtype} {list(weights.shape)}")
    if compensation is not None and compensation.order.shape != (batch, heads, channels):
        found = list(compensation.order.shape)
        raise ValueError(f"the compensation must be for {[batch, heads, channels]}, not {found}")
    if choose_backend(x.device, x.dtype).name == "torch":
        return naive.fit(x, index, weights, bits=bits, window=window, compensation=compensation)
    from wq_kernels.ops.fit import kernel

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        return kernel.fit(x, index, weights, bits=bits, window=window, compensation=compensation)
