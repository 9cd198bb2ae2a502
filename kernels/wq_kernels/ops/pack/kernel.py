"""Quantize, reorder and pack in Triton: from the tokens of a layer to words, scales and minima."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wq_kernels.launch import next_power_of_two, pack_rows
from wq_kernels.layout import METADATA_DTYPE, Block, codes_per_word, unwritten

# Added to a float32 from 0 to 2**23 it leaves the nearest integer, ties to even, in the low bits of the mantissa.
ROUNDER = tl.constexpr(8388608.0)


@triton.jit
def round_half_even(x):
    """Nearest integer of float32, ties to even: past 2**23 every float32 is an integer."""
    magnitude = tl.abs(x)
    rounded = tl.where(magnitude < ROUNDER, (magnitude + ROUNDER) - ROUNDER, magnitude)
    return tl.where(x < 0, -rounded, rounded)


@triton.jit
def load_tokens(x, index, token, channel, stride, WINDOW: tl.constexpr, D: tl.constexpr):
    """Tokens of a window, float32 [tokens, C, PLANES]; past its end the last one repeats, which moves no extreme."""
    source = tl.load(index + tl.minimum(token, WINDOW - 1))
    place = x + source[:, None, None] * stride + channel[None, :, :]
    return tl.load(place, mask=(channel < D)[None, :, :], other=0.0).to(tl.float32)


@triton.jit
def scale_and_minimum(
    b_low, b_high, scale, minimum, channel, limit, TOP: tl.constexpr, D: tl.constexpr, INTEGER_ZERO: tl.constexpr
):  # fmt: skip
    """Stores the scales and minima of the channels; gives the divisor and zero that `quantize` takes."""
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
    tl.store(scale + channel, b_scale, mask=channel < D)
    tl.store(minimum + channel, b_minimum, mask=channel < D)
    return b_divisor, b_zero


@triton.jit
def quantize(b_x, b_divisor, b_zero, TOP: tl.constexpr, INTEGER_ZERO: tl.constexpr):
    """Codes int32 of tokens [tokens, C, PLANES]."""
    if INTEGER_ZERO:
        b_code = round_half_even(tl.div_rn(b_x, b_divisor[None, :, :])) + b_zero[None, :, :]
    else:
        b_code = tl.div_rn(b_x - b_zero[None, :, :], b_divisor[None, :, :])
    return (tl.clamp(b_code, 0.0, TOP * 1.0) + ROUNDER).to(tl.int32, bitcast=True) & TOP


@triton.jit
def pack_kernel(
    x, index, words, scale, minimum, stride_xb, stride_xh, stride_xn, heads, windows, limit,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr, INTEGER_ZERO: tl.constexpr,
):  # fmt: skip
    """Codes round((x - minimum) / scale) of one window of one head, packed along the channels of each token.

    Grid: windows x B * Hkv. A program is one warp, whose threads hold whole words. It goes over its window twice, the
    second time out of the L1 cache.

    Args:
        index: int64 [B, W * S], contiguous.
        words: int16 [B, Hkv, W * S, C].
        scale: float16 [B, Hkv, W, C * PLANES], as is minimum.
        limit: Largest finite number of float16.
    """
    i_window, i_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    D: tl.constexpr = C * PLANES
    TOP: tl.constexpr = 2**BITS - 1
    x += i_head // heads * stride_xb + i_head % heads * stride_xh
    index += (i_head // heads * windows + i_window) * WINDOW
    place = i_head * windows + i_window
    words += place * WINDOW * C
    row = tl.arange(0, ROWS)
    word = tl.arange(0, BLOCK_C)
    plane = tl.arange(0, PLANES)
    channel = word[:, None] * PLANES + plane[None, :]

    b_low = load_tokens(x, index, row, channel, stride_xn, WINDOW, D)
    b_high = b_low
    for start in tl.range(ROWS, WINDOW, ROWS, loop_unroll_factor=4):
        b_x = load_tokens(x, index, start + row, channel, stride_xn, WINDOW, D)
        b_low = tl.minimum(b_low, b_x)
        b_high = tl.maximum(b_high, b_x)
    b_divisor, b_zero = scale_and_minimum(
        tl.min(b_low, axis=0), tl.max(b_high, axis=0), scale + place * D, minimum + place * D, channel, limit,
        TOP, D, INTEGER_ZERO,
    )  # fmt: skip
    for start in tl.range(0, WINDOW, ROWS, loop_unroll_factor=4):
        token = start + row
        b_x = load_tokens(x, index, token, channel, stride_xn, WINDOW, D)
        b_code = quantize(b_x, b_divisor, b_zero, TOP, INTEGER_ZERO)
        # The codes of a word do not overlap.
        b_word = tl.sum(b_code << (plane * BITS)[None, None, :], axis=2)
        mask = (token < WINDOW)[:, None] & (word < C)[None, :]
        tl.store(words + token[:, None] * C + word[None, :], b_word.to(tl.int16), mask=mask)


def pack(x: Tensor, index: Tensor, *, bits: int, window: int, zero_point: str) -> Block:
    """See `wq_kernels.pack`."""
    batch, heads, _, channels = x.shape
    block, scale, minimum = unwritten(x, index.shape[1], bits, window)
    if block.data.numel() == 0:
        return block
    words = block.data.shape[3]
    pack_kernel[(block.windows, batch * heads)](
        x, index.contiguous(), block.data, scale, minimum, *x.stride()[:3],
        heads, block.windows, torch.finfo(METADATA_DTYPE).max,
        BITS=bits, WINDOW=window, PLANES=codes_per_word(bits), C=words, BLOCK_C=next_power_of_two(words),
        ROWS=pack_rows(channels), INTEGER_ZERO=zero_point == "integer", num_warps=1,
    )  # fmt: skip
    return block
