"""`layout.channel_order` as the Triton kernels compute it."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from wq_kernels.layout import WORD_BLOCK

BLOCK = tl.constexpr(WORD_BLOCK)


@triton.jit
def word_of_channel(channel, WORDS: tl.constexpr):
    """Word, out of the WORDS of a token, that holds a channel of plane 0; the other planes repeat it."""
    start = channel // BLOCK * BLOCK
    odd = tl.minimum(BLOCK, WORDS - start) // 2
    return start + channel % 2 * odd + channel % BLOCK // 2
