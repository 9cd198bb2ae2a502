"""Unpack and dequantize in Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wq_kernels.launch import unpack_tile
from wq_kernels.layout import Block, codes_per_word, words_per_window


@triton.jit
def unpack_kernel(
    words, scale, minimum, output, rows, limit,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PER_WORD: tl.constexpr, WORDS: tl.constexpr, ROWS: tl.constexpr,
    D: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """scale * code + minimum of ROWS words of every channel.

    Grid: blocks of the B * Hkv * W * WORDS rows of words; a row of words is PER_WORD tokens or, at the end of a
    window, fewer.

    Args:
        output: [B, Hkv, W * WINDOW, D], contiguous.
        rows: B * Hkv * W * WORDS.
        limit: Largest finite number of output's dtype.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, BLOCK_D)
    mask = (row < rows)[:, None] & (channel < D)[None, :]
    window = row // WORDS
    b_words = tl.load(words + row[:, None] * D + channel[None, :], mask=mask, other=0)
    b_scale = tl.load(scale + window[:, None] * D + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    b_minimum = tl.load(minimum + window[:, None] * D + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    for p in tl.static_range(PER_WORD):
        token = row % WORDS * PER_WORD + p
        b_code = ((b_words >> (p * BITS)) & (2**BITS - 1)).to(tl.float32)
        b_x = tl.clamp(b_code * b_scale + b_minimum, -limit, limit)
        p_output = output + (window * WINDOW + token)[:, None] * D + channel[None, :]
        tl.store(p_output, b_x.to(output.dtype.element_ty), mask=mask & (token < WINDOW)[:, None])


def unpack(block: Block, dtype: torch.dtype) -> Tensor:
    """See `wq_kernels.unpack`."""
    batch, heads, rows, channels = block.data.shape
    output = torch.empty(batch, heads, block.tokens, channels, dtype=dtype, device=block.data.device)
    if output.numel() == 0:
        return output
    tile = unpack_tile(channels)
    total = batch * heads * rows
    unpack_kernel[(-(-total // tile.words),)](
        block.data, block.scale, block.minimum, output, total, torch.finfo(dtype).max,
        BITS=block.bits, WINDOW=block.window, PER_WORD=codes_per_word(block.bits),
        WORDS=words_per_window(block.window, block.bits), ROWS=tile.words,
        D=channels, BLOCK_D=tile.channel_block, num_warps=tile.warps,
    )  # fmt: skip
    return output
