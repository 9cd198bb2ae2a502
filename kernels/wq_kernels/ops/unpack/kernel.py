"""Unpack and dequantize in Triton."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from wq_kernels.launch import next_power_of_two, unpack_rows
from wq_kernels.layout import Block, codes_per_word
from wq_kernels.ops.order import word_of_channel


@triton.jit
def unpack_kernel(
    words, scale, minimum, output, tokens, limit,
    BITS: tl.constexpr, WINDOW: tl.constexpr, PLANES: tl.constexpr, C: tl.constexpr, BLOCK_C: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """scale * code + minimum of every channel of ROWS tokens, plane by plane.

    Grid: blocks of the B * Hkv * W * WINDOW tokens.

    Args:
        output: [B, Hkv, W * WINDOW, PLANES * C], contiguous.
        tokens: B * Hkv * W * WINDOW.
        limit: Largest finite number of output's dtype.
    """
    token = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    channel = tl.arange(0, BLOCK_C)[None, :]
    mask = (token < tokens) & (channel < C)
    window = token // WINDOW
    b_words = tl.load(words + token * C + word_of_channel(channel, C), mask=mask, other=0)
    for p in tl.static_range(PLANES):
        place = p * C + channel
        b_scale = tl.load(scale + window * PLANES * C + place, mask=mask, other=0.0).to(tl.float32)
        b_minimum = tl.load(minimum + window * PLANES * C + place, mask=mask, other=0.0).to(tl.float32)
        b_code = ((b_words >> (p * BITS)) & (2**BITS - 1)).to(tl.float32)
        b_x = tl.clamp(b_code * b_scale + b_minimum, -limit, limit)
        tl.store(output + token * PLANES * C + place, b_x.to(output.dtype.element_ty), mask=mask)


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
