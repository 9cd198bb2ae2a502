"""Quantize, reorder and pack in Triton: from the tokens of a layer to words, scales and minima."""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wq_kernels.launch import next_power_of_two, pack_rows
from wq_kernels.layout import METADATA_DTYPE, Block, codes_per_word, words_per_token
from wq_kernels.ops.order import word_of_channel

# Added to a float32 from 0 to 2**23 it leaves the nearest integer, ties to even, in the low bits of the mantissa.
ROUNDER = tl.constexpr(8388608.0)


@triton.jit
def round_half_even(x):
    """Nearest integer of float32, ties to even: past 2**23 every float32 is an integer."""
    magnitude = tl.abs(x)
    rounded = tl.where(magnitude < ROUNDER, (magnitude + ROUNDER) - ROUNDER, magnitude)
    return tl.where(x < 0, -rounded, rounded)


@triton.jit
def load_planes(x, index, token, channel, stride, WINDOW: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr):
    """The PLANES tiles [tokens, C] float32 of a window; past its end the last token repeats, which moves no extreme."""
    source = tl.load(index + tl.minimum(token, WINDOW - 1))
    planes = ()
    for p in tl.static_range(PLANES):
        b_x = tl.load(x + source[:, None] * stride + p * C + channel[None, :], mask=(channel < C)[None, :], other=0.0)
        planes = planes + (b_x.to(tl.float32),)
    return planes


@triton.jit
def scale_and_minimum(
    b_low, b_high, scale, minimum, channel, limit, TOP: tl.constexpr, C: tl.constexpr, INTEGER_ZERO: tl.constexpr
):  # fmt: skip
    """Stores the scale and the minimum of the channels of a plane; gives the divisor and zero that `quantize` takes."""
    # Divided before the subtraction: the range itself can overflow.
    b_scale = tl.minimum(tl.div_rn(b_high, TOP * 1.0) - tl.div_rn(b_low, TOP * 1.0), limit).to(tl.float16)
    b_step = b_scale.to(tl.float32)
    b_divisor = tl.where(b_step > 0, b_step, float("inf"))
    b_zero = b_low
    b_minimum = b_low
    if INTEGER_ZERO:
        b_zero = -round_half_even(tl.div_rn(b_low, b_divisor))
        b_minimum = tl.where(b_step > 0, -b_step * b_zero, b_low)
    b_minimum = tl.clamp(b_minimum, -limit, limit).to(tl.float16)
    if not INTEGER_ZERO:
        b_zero = b_minimum.to(tl.float32)
    tl.store(scale + channel, b_scale, mask=channel < C)
    tl.store(minimum + channel, b_minimum, mask=channel < C)
    return b_divisor, b_zero


@triton.jit
def quantize(b_x, b_divisor, b_zero, TOP: tl.constexpr, INTEGER_ZERO: tl.constexpr):
    """Codes int32 of a plane [tokens, C]."""
    if INTEGER_ZERO:
        b_code = round_half_even(tl.div_rn(b_x, b_divisor[None, :])) + b_zero[None, :]
    else:
        b_code = tl.div_rn(b_x - b_zero[None, :], b_divisor[None, :])
    return (tl.clamp(b_code, 0.0, TOP * 1.0) + ROUNDER).to(tl.int32, bitcast=True) & TOP


@triton.jit
def pack_kernel(
    x, index, words, scale, minimum, stride_xb, stride_xh, stride_xn, heads, windows, limit,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr, INTEGER_ZERO: tl.constexpr,
):  # fmt: skip
    """Codes round((x - minimum) / scale) of one window of one head, packed along the channels of each token.

    Grid: windows x B * Hkv. A program is one warp and holds a tile for each plane, ROWS tokens by C channels, so that a
    word is a sum over tiles inside a thread. It goes over its window twice, the second time out of the L1 cache.

    Args:
        index: int64 [B, W * S], contiguous.
        words: int16 [B, Hkv, W * S, C].
        scale: float16 [B, Hkv, W, PLANES * C], as is minimum.
        limit: Largest finite number of float16.
    """
    i_window, i_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    x += i_head // heads * stride_xb + i_head % heads * stride_xh
    index += (i_head // heads * windows + i_window) * WINDOW
    place = i_head * windows + i_window
    words += place * WINDOW * C
    scale += place * PLANES * C
    minimum += place * PLANES * C
    row = tl.arange(0, ROWS)
    channel = tl.arange(0, BLOCK_C)
    TOP: tl.constexpr = 2**BITS - 1

    lows = load_planes(x, index, row, channel, stride_xn, WINDOW, PLANES, C)
    highs = lows
    for start in tl.range(ROWS, WINDOW, ROWS, loop_unroll_factor=4):
        planes = load_planes(x, index, start + row, channel, stride_xn, WINDOW, PLANES, C)
        new_lows = ()
        new_highs = ()
        for p in tl.static_range(PLANES):
            new_lows = new_lows + (tl.minimum(lows[p], planes[p]),)
            new_highs = new_highs + (tl.maximum(highs[p], planes[p]),)
        lows = new_lows
        highs = new_highs
    divisors = ()
    zeros = ()
    for p in tl.static_range(PLANES):
        b_divisor, b_zero = scale_and_minimum(
            tl.min(lows[p], axis=0), tl.max(highs[p], axis=0), scale + p * C, minimum + p * C, channel, limit,
            TOP, C, INTEGER_ZERO,
        )  # fmt: skip
        divisors = divisors + (b_divisor,)
        zeros = zeros + (b_zero,)

    p_words = words + word_of_channel(channel, C)
    for start in tl.range(0, WINDOW, ROWS, loop_unroll_factor=4):
        token = start + row
        planes = load_planes(x, index, token, channel, stride_xn, WINDOW, PLANES, C)
        b_word = quantize(planes[0], divisors[0], zeros[0], TOP, INTEGER_ZERO)
        for p in tl.static_range(1, PLANES):
            b_word += quantize(planes[p], divisors[p], zeros[p], TOP, INTEGER_ZERO) << (p * BITS)
        mask = (token < WINDOW)[:, None] & (channel < C)[None, :]
        tl.store(p_words[None, :] + token[:, None] * C, b_word.to(tl.int16), mask=mask)


def pack(x: Tensor, index: Tensor, *, bits: int, window: int, zero_point: str) -> Block:
    """See `wq_kernels.pack`."""
    batch, heads, _, channels = x.shape
    windows, words = index.shape[1] // window, words_per_token(channels, bits)
    data = x.new_empty(batch, heads, windows * window, words, dtype=torch.int16)
    scale, minimum = (x.new_empty(batch, heads, windows, channels, dtype=METADATA_DTYPE) for _ in range(2))
    block = Block(bits, window, channels, data, scale, minimum)
    if data.numel() == 0:
        return block
    pack_kernel[(windows, batch * heads)](
        x, index.contiguous(), data, scale, minimum, *x.stride()[:3],
        heads, windows, torch.finfo(METADATA_DTYPE).max,
        BITS=bits, WINDOW=window, PLANES=codes_per_word(bits), C=words, BLOCK_C=next_power_of_two(words),
        ROWS=pack_rows(words), INTEGER_ZERO=zero_point == "integer", num_warps=1,
    )  # fmt: skip
    return block
