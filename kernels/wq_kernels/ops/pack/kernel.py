"""Quantize, reorder and pack in Triton: one pass from the tokens of a layer to words, scales and minima."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wq_kernels.launch import pack_tile
from wq_kernels.layout import Block, codes_per_word, words_per_window


@triton.jit
def round_half_even(x):
    """Nearest integer of float32, ties to even: past 2**23 every float32 is an integer."""
    magnitude = tl.abs(x)
    rounded = tl.where(magnitude < 8388608.0, (magnitude + 8388608.0) - 8388608.0, magnitude)
    return tl.where(x < 0, -rounded, rounded)


@triton.jit
def load_tokens(
    x, index, word, channel, stride, WINDOW: tl.constexpr, WORDS: tl.constexpr, PER_WORD: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Tokens of words of a window: values float32 [ROWS, PER_WORD, C] and whether the window reaches that far."""
    token = word[:, None] * PER_WORD + tl.arange(0, PER_WORD)[None, :]
    present = (word < WORDS)[:, None] & (token < WINDOW)
    source = tl.load(index + token, mask=present, other=0)
    mask = present[:, :, None] & (channel < D)[None, None, :]
    values = tl.load(x + source[:, :, None] * stride + channel[None, None, :], mask=mask, other=0.0)
    return values.to(tl.float32), mask


@triton.jit
def pack_kernel(
    x, index, words, scale, minimum, stride_xb, stride_xh, stride_xn, heads, windows, limit,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PER_WORD: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr, INTEGER_ZERO: tl.constexpr,
):  # fmt: skip
    """Codes round((x - minimum) / scale) of one window of one head, packed along its tokens.

    Grid: windows x B * Hkv. A window that fits in one tile is read once, a larger one twice.

    Args:
        index: int64 [B, W * S], contiguous.
        words: int32 [B, Hkv, W * WORDS, D].
        scale: [B, Hkv, W, D] in x's dtype, as is minimum.
        limit: Largest finite number of x's dtype.
        ROWS: Words of a tile, a power of two.
    """
    i_window, i_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    batch, head = i_head // heads, i_head % heads
    x += batch * stride_xb + head * stride_xh
    index += (batch * windows + i_window) * WINDOW
    place = i_head * windows + i_window
    channel = tl.arange(0, BLOCK_D)
    m_channel = channel < D
    TOP: tl.constexpr = 2**BITS - 1

    b_x, mask = load_tokens(x, index, tl.arange(0, ROWS), channel, stride_xn, WINDOW, WORDS, PER_WORD, D)
    b_low = tl.min(tl.min(tl.where(mask, b_x, float("inf")), axis=0), axis=0)
    b_high = tl.max(tl.max(tl.where(mask, b_x, float("-inf")), axis=0), axis=0)
    for first in range(ROWS, WORDS, ROWS):
        b_more, mask = load_tokens(x, index, first + tl.arange(0, ROWS), channel, stride_xn, WINDOW, WORDS, PER_WORD, D)
        b_low = tl.minimum(b_low, tl.min(tl.min(tl.where(mask, b_more, float("inf")), axis=0), axis=0))
        b_high = tl.maximum(b_high, tl.max(tl.max(tl.where(mask, b_more, float("-inf")), axis=0), axis=0))
    b_low = tl.where(m_channel, b_low, 0.0)
    b_high = tl.where(m_channel, b_high, 0.0)

    # Divided before the subtraction: the range itself can overflow.
    b_scale = tl.minimum(tl.div_rn(b_high, TOP * 1.0) - tl.div_rn(b_low, TOP * 1.0), limit)
    b_scale = b_scale.to(scale.dtype.element_ty)
    tl.store(scale + place * D + channel, b_scale, mask=m_channel)
    b_step = b_scale.to(tl.float32)
    b_divisor = tl.where(b_step > 0, b_step, float("inf"))
    if INTEGER_ZERO:
        b_zero = -round_half_even(tl.div_rn(b_low, b_divisor))
        # The multiple of the scale that is nearest to the minimum may lie outside the dtype.
        b_minimum = tl.clamp(tl.where(b_step > 0, -b_step * b_zero, b_low), -limit, limit)
    else:
        b_zero = b_low
        b_minimum = b_low
    tl.store(minimum + place * D + channel, b_minimum.to(minimum.dtype.element_ty), mask=m_channel)

    words += place * WORDS * D
    shift = tl.arange(0, PER_WORD)[None, :, None] * BITS
    for first in range(0, WORDS, ROWS):
        word = first + tl.arange(0, ROWS)
        if WORDS > ROWS:
            b_x, mask = load_tokens(x, index, word, channel, stride_xn, WINDOW, WORDS, PER_WORD, D)
        if INTEGER_ZERO:
            b_code = round_half_even(tl.div_rn(b_x, b_divisor[None, None, :])) + b_zero[None, None, :]
        else:
            b_code = round_half_even(tl.div_rn(b_x - b_zero[None, None, :], b_divisor[None, None, :]))
        b_code = tl.where(mask, tl.clamp(b_code, 0.0, TOP * 1.0), 0.0).to(tl.int32)
        # The fields of a word do not overlap, so that their sum modulo 2**32 is their union.
        b_word = tl.sum(b_code << shift, axis=1)
        m_word = (word < WORDS)[:, None] & m_channel[None, :]
        tl.store(words + word[:, None] * D + channel[None, :], b_word, mask=m_word)


def pack(x: Tensor, index: Tensor, *, bits: int, window: int, zero_point: str) -> Block:
    """See `wq_kernels.pack`."""
    batch, heads, _, channels = x.shape
    windows = index.shape[1] // window
    words = words_per_window(window, bits)
    block = Block(
        bits,
        window,
        windows,
        torch.empty(batch, heads, windows * words, channels, dtype=torch.int32, device=x.device),
        x.new_empty(batch, heads, windows, channels),
        x.new_empty(batch, heads, windows, channels),
    )
    if block.data.numel() == 0:
        return block
    tile = pack_tile(channels, words, codes_per_word(bits))
    pack_kernel[(windows, batch * heads)](
        x, index.contiguous(), block.data, block.scale, block.minimum, *x.stride()[:3],
        heads, windows, torch.finfo(x.dtype).max,
        BITS=bits, WINDOW=window, PER_WORD=codes_per_word(bits), WORDS=words, ROWS=tile.words,
        D=channels, BLOCK_D=tile.channel_block, INTEGER_ZERO=zero_point == "integer", num_warps=tile.warps,
    )  # fmt: skip
    return block
