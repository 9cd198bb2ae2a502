"""Fit, reorder and pack in Triton: one kernel finds scales and minima, one chooses codes and packs them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wq_kernels.launch import code_rows, fit_warps, next_power_of_two
from wq_kernels.layout import METADATA_DTYPE, Block, codes_per_word, unwritten
from wq_kernels.ops.fit.compensation import Compensation
from wq_kernels.ops.fit.naive import LEAST_SPREAD, LEAST_WEIGHT, ROUNDS, STARTS
from wq_kernels.ops.pack.kernel import ROUNDER, load_tokens

# Channels of a program that fits: one sector of memory.
FIT_CHANNELS = 16


@triton.jit
def inverse_of(scale):
    """1 / scale; 0 where the scale is. Below the threshold float16 has no scale, and the inverse could overflow."""
    return 1.0 / tl.where(scale > 1e-30, scale, float("inf"))


@triton.jit
def nearest(b_x, b_inverse, b_minimum, TOP: tl.constexpr):
    """Codes as float32, ties to even; 0 where the inverse is."""
    return (tl.clamp((b_x - b_minimum) * b_inverse, 0.0, TOP * 1.0) + ROUNDER) - ROUNDER


@triton.jit
def stored(b_x, limit):
    """As float16 holds it."""
    return tl.clamp(b_x, -limit, limit).to(tl.float16).to(tl.float32)


@triton.jit
def fit_from(
    b_x, b_weight, b_low, b_range, b_mean, total, limit,
    SHARE: tl.constexpr, TOP: tl.constexpr, ROUNDS: tl.constexpr, LEAST_SPREAD: tl.constexpr,
):  # fmt: skip
    """Weighted squared error, scale and minimum of each channel after some rounds from a share of the range.

    Args:
        b_x: [tokens, channels].
        b_weight: [tokens, 1].
        b_low, b_range, b_mean: Least value, greatest minus least, weighted mean, [channels].
        total: Sum of the weights.
    """
    b_scale = b_range * (SHARE / TOP)
    b_minimum = b_low + b_range * ((1 - SHARE) / 2)
    for _ in tl.range(ROUNDS):
        b_code = nearest(b_x, inverse_of(b_scale)[None, :], b_minimum[None, :], TOP)
        b_mean_code = tl.sum(b_weight * b_code, axis=0) / total
        b_centred = b_code - b_mean_code[None, :]
        b_weighted = b_weight * b_centred
        b_spread = tl.sum(b_weighted * b_centred, axis=0)
        b_spread = tl.where(b_spread > LEAST_SPREAD * total, b_spread, float("inf"))
        b_scale = stored(tl.sum(b_weighted * b_x, axis=0) / b_spread, limit)
        b_minimum = stored(b_mean - b_scale * b_mean_code, limit)
    b_code = nearest(b_x, inverse_of(b_scale)[None, :], b_minimum[None, :], TOP)
    b_error = b_x - b_minimum[None, :] - b_scale[None, :] * b_code
    return tl.sum(b_weight * b_error * b_error, axis=0), b_scale, b_minimum


@triton.jit
def fit_kernel(
    x, index, weights, scale, minimum, stride_xb, stride_xh, stride_xn, heads, windows, length, limit,
    BITS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr,
    STARTS: tl.constexpr, ROUNDS: tl.constexpr, LEAST_WEIGHT: tl.constexpr, LEAST_SPREAD: tl.constexpr,
):  # fmt: skip
    """Scales and minima of BLOCK_D channels of one window of one head, all rounds in registers.

    Grid: windows x blocks of channels x B * Hkv.

    Args:
        index: int64 [B, W * S], contiguous.
        weights: float32 [B, Hkv, L], contiguous.
        scale: float16 [B, Hkv, W, D], as is minimum.
        limit: Largest finite number of float16.
    """
    i_window, i_head = tl.program_id(0).to(tl.int64), tl.program_id(2).to(tl.int64)
    TOP: tl.constexpr = 2**BITS - 1
    x += i_head // heads * stride_xb + i_head % heads * stride_xh
    token = tl.arange(0, BLOCK_S)
    channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    # Past the end of the window the last token repeats, which moves no extreme, and counts nothing.
    source = tl.load(index + (i_head // heads * windows + i_window) * WINDOW + tl.minimum(token, WINDOW - 1))
    place = x + source[:, None] * stride_xn + channel[None, :]
    b_x = tl.load(place, mask=(channel < D)[None, :], other=0.0).to(tl.float32)
    b_weight = tl.load(weights + i_head * length + source, mask=token < WINDOW, other=0.0)
    b_weight = b_weight / tl.maximum(tl.sum(b_weight, axis=0) / WINDOW, 1e-37) + LEAST_WEIGHT
    b_weight = tl.where(token < WINDOW, b_weight, 0.0)
    total = tl.sum(b_weight, axis=0)
    b_weight = b_weight[:, None]
    b_low = tl.min(b_x, axis=0)
    b_range = tl.max(b_x, axis=0) - b_low
    b_mean = tl.sum(b_weight * b_x, axis=0) / total

    b_least, b_scale, b_minimum = fit_from(
        b_x, b_weight, b_low, b_range, b_mean, total, limit, STARTS[0], TOP, ROUNDS, LEAST_SPREAD
    )
    for i in tl.static_range(1, len(STARTS)):
        b_error, b_new_scale, b_new_minimum = fit_from(
            b_x, b_weight, b_low, b_range, b_mean, total, limit, STARTS[i], TOP, ROUNDS, LEAST_SPREAD
        )
        better = b_error < b_least
        b_least = tl.where(better, b_error, b_least)
        b_scale = tl.where(better, b_new_scale, b_scale)
        b_minimum = tl.where(better, b_new_minimum, b_minimum)
    target = (i_head * windows + i_window) * D + channel
    tl.store(scale + target, b_scale.to(tl.float16), mask=channel < D)
    tl.store(minimum + target, b_minimum.to(tl.float16), mask=channel < D)


@triton.jit
def code_kernel(
    x, index, scale, minimum, words, order, shares, stride_xb, stride_xh, stride_xn, heads, windows,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr, COMPENSATED: tl.constexpr,
):  # fmt: skip
    """Codes of up to ROWS tokens of one window of one head, packed along the channels of each token.

    Grid: windows x B * Hkv x parts of a window. A program is one warp. Values stay in the registers where they are: a
    step picks its channel out of all, and a value that was picked does not change any more.

    Args:
        index: int64 [B, W * S], contiguous.
        scale: float16 [B, Hkv, W, C * PLANES], as is minimum.
        words: int16 [B, Hkv, W * S, C].
        order: int64 [B, Hkv, C * PLANES], contiguous; of `Compensation`, as are the shares.
        shares: float32 [B, Hkv, C * PLANES, C * PLANES], contiguous.
    """
    i_window, i_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    D: tl.constexpr = C * PLANES
    TOP: tl.constexpr = 2**BITS - 1
    x += i_head // heads * stride_xb + i_head % heads * stride_xh
    index += (i_head // heads * windows + i_window) * WINDOW
    place = i_head * windows + i_window
    scale += place * D
    minimum += place * D
    words += place * WINDOW * C
    token = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, BLOCK_C)
    plane = tl.arange(0, PLANES)
    channel = word[:, None] * PLANES + plane[None, :]
    b_x = load_tokens(x, index, token, channel, stride_xn, WINDOW, D)
    if COMPENSATED:
        order += i_head * D
        shares += i_head * D * D
        for _ in tl.range(D):
            chosen = tl.load(order).to(tl.int32)
            step = tl.load(scale + chosen).to(tl.float32)
            start = tl.load(minimum + chosen).to(tl.float32)
            # All bits of one channel and none of the others: their sum is its value.
            b_bits = b_x.to(tl.int32, bitcast=True) & tl.where(channel == chosen, -1, 0)[None, :, :]
            b_value = tl.sum(tl.sum(b_bits, axis=2), axis=1).to(tl.float32, bitcast=True)
            b_error = b_value - start - step * nearest(b_value, inverse_of(step), start, TOP)
            b_share = tl.load(shares + channel, mask=channel < D, other=0.0)
            b_x -= b_error[:, None, None] * b_share[None, :, :]
            order += 1
            shares += D
    b_inverse = inverse_of(tl.load(scale + channel, mask=channel < D, other=0.0).to(tl.float32))
    b_minimum = tl.load(minimum + channel, mask=channel < D, other=0.0).to(tl.float32)
    b_code = nearest(b_x, b_inverse[None, :, :], b_minimum[None, :, :], TOP).to(tl.int32)
    # The codes of a word do not overlap.
    b_word = tl.sum(b_code << (plane * BITS)[None, None, :], axis=2)
    mask = (token < WINDOW)[:, None] & (word < C)[None, :]
    tl.store(words + token[:, None] * C + word[None, :], b_word.to(tl.int16), mask=mask)


def fit(
    x: Tensor, index: Tensor, weights: Tensor, *, bits: int, window: int, compensation: Compensation | None
) -> Block:
    """See `wq_kernels.fit`."""
    batch, heads, length, channels = x.shape
    block, scale, minimum = unwritten(x, index.shape[1], bits, window)
    if block.data.numel() == 0:
        return block
    index, windows, words = index.contiguous(), block.windows, block.data.shape[3]
    fit_kernel[(windows, -(-channels // FIT_CHANNELS), batch * heads)](
        x, index, weights.contiguous(), scale, minimum, *x.stride()[:3],
        heads, windows, length, torch.finfo(METADATA_DTYPE).max,
        BITS=bits, WINDOW=window, D=channels, BLOCK_S=next_power_of_two(window), BLOCK_D=FIT_CHANNELS,
        STARTS=STARTS, ROUNDS=ROUNDS, LEAST_WEIGHT=LEAST_WEIGHT, LEAST_SPREAD=LEAST_SPREAD,
        num_warps=fit_warps(window),
    )  # fmt: skip
    order, shares = (None, None) if compensation is None else (compensation.order, compensation.shares)
    rows = code_rows(channels, window)
    code_kernel[(windows, batch * heads, -(-window // rows))](
        x, index, scale, minimum, block.data, order, shares, *x.stride()[:3], heads, windows,
        BITS=bits, WINDOW=window, PLANES=codes_per_word(bits), C=words, BLOCK_C=next_power_of_two(words),
        ROWS=rows, COMPENSATED=compensation is not None, num_warps=1,
    )  # fmt: skip
    return block
