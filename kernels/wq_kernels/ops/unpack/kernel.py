"""Unpack and dequantize in Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wq_kernels.launch import next_power_of_two, unpack_rows
from wq_kernels.layout import Block, codes_per_word


@triton.jit
def unpack_kernel(
    words, scale, minimum, output, tokens, limit,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """scale * code + minimum of every channel of ROWS tokens.

    Grid: blocks of the B * Hkv * W * WINDOW tokens.

    Args:
        output: [B, Hkv, W * WINDOW, C * PLANES], contiguous.
        tokens: B * Hkv * W * WINDOW.
        limit: Largest finite number of output's dtype.
    """
    D: tl.constexpr = C * PLANES
    token = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    word = tl.arange(0, BLOCK_C)
    plane = tl.arange(0, PLANES)
    channel = (word[:, None] * PLANES + plane[None, :])[None, :, :]
    seen = (token < tokens)[:, None] & (word < C)[None, :]
    mask = seen[:, :, None] & (plane >= 0)[None, None, :]
    b_words = tl.load(words + token[:, None] * C + word[None, :], mask=seen, other=0)
    p_window = (token // WINDOW)[:, None, None] * D + channel
    b_scale = tl.load(scale + p_window, mask=mask, other=0.0).to(tl.float32)
    b_minimum = tl.load(minimum + p_window, mask=mask, other=0.0).to(tl.float32)
    b_code = ((b_words[:, :, None] >> (plane * BITS)[None, None, :]) & (2**BITS - 1)).to(tl.float32)
    b_x = tl.clamp(b_code * b_scale + b_minimum, -limit, limit)
    tl.store(output + token[:, None, None] * D + channel, b_x.to(output.dtype.element_ty), mask=mask)


def unpack(block: Block, dtype: torch.dtype) -> Tensor:
    """See `wq_kernels.unpack`."""
    batch, heads, _, words = block.data.shape
    output = torch.empty(batch, heads, block.tokens, block.channels, dtype=dtype, device=block.data.device)
    if output.numel() == 0:
        return output
    tokens, rows = batch * heads * block.tokens, unpack_rows(words)
    unpack_kernel[(-(-tokens // rows),)](
        block.data, block.scale, block.minimum, output, tokens, torch.finfo(dtype).max,
        BITS=block.bits, WINDOW=block.window, PLANES=codes_per_word(block.bits), C=words,
        BLOCK_C=next_power_of_two(words), ROWS=rows, num_warps=4,
    )  # fmt: skip
    return output
