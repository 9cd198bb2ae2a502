"""How attention reads packed words: codes become float16 without arithmetic, tiles find their words and scales.

A float16 whose exponent bits are 0 is its mantissa times 2**-24, so that a word masked down to one code *is* the number
code * 2**(position - 24), exactly; tensor cores take such subnormal numbers at full speed. One logic operation turns
two neighbouring words into the codes of two channels. Scales never meet the codes: keys' scales go into the queries,
values' scales come onto the sums.
"""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def position(plane, bits):
    """Lowest bit of a plane's code: in place inside the 10 bits of a mantissa, else after one shift of its word."""
    in_place = 10 // bits
    return bits * plane if plane < in_place else bits * plane - max(bits * in_place, 6)


def mask_assembly(bits: int) -> tl.constexpr:
    """PTX that turns two words into the 16 / bits pairs of their codes: one shift, then one AND each."""
    planes = 16 // bits
    places = [position(plane, bits) for plane in range(planes)]
    lines = [".reg .b32 shifted", f"shr.u32 shifted, ${planes}, {bits * (planes - 1) - places[-1]}"]
    for plane, at in enumerate(places):
        mask = ((2**bits - 1) << at) * 0x10001
        lines.append(f"and.b32 ${plane}, {f'${planes}' if at == bits * plane else 'shifted'}, {mask:#x}")
    return tl.constexpr("{ " + "; ".join(lines) + "; }")


MASK_2, MASK_4, MASK_8 = (mask_assembly(bits) for bits in (2, 4, 8))


@triton.jit
def code_planes(words, BITS: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr):
    """The 16 / BITS planes code * 2**(position - 24) of int16 words, a tuple of tensors of the words' shape."""
    planes = ()
    if USE_ASSEMBLY:
        if BITS == 2:
            planes = tl.inline_asm_elementwise(
                MASK_2, "=r,=r,=r,=r,=r,=r,=r,=r,r", [words],
                (tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16, tl.float16),
                True, 2,
            )  # fmt: skip
        elif BITS == 4:
            planes = tl.inline_asm_elementwise(
                MASK_4, "=r,=r,=r,=r,r", [words], (tl.float16, tl.float16, tl.float16, tl.float16), True, 2
            )
        else:
            planes = tl.inline_asm_elementwise(MASK_8, "=r,=r,r", [words], (tl.float16, tl.float16), True, 2)
    else:
        for p in tl.static_range(16 // BITS):
            code = (words >> (BITS * p - position(p, BITS))) & ((2**BITS - 1) << position(p, BITS))
            planes = planes + (code.to(tl.int16).to(tl.float16, bitcast=True).to(DTYPE),)
    return planes


@triton.constexpr_function
def block_words(block, words):
    """Words of a block of 16 of a token; the last one may be narrower."""
    return min(16, words - 16 * block)


@triton.jit
def word_column(block: tl.constexpr, WORDS: tl.constexpr):
    """Words of a token that the 16 rows (or columns) of a block stand for, [16], and which rows stand for none.

    Rows 0 to 7 are the first half of the block, rows 8 to 15 the second.
    """
    row = tl.arange(0, 16)
    HALF: tl.constexpr = block_words(block, WORDS) // 2
    if HALF == 8:
        return block * 16 + row, row >= 0
    return block * 16 + row // 8 * HALF + row % 8, row % 8 < HALF


@triton.jit
def slice_channel(plane: tl.constexpr, block: tl.constexpr, WORDS: tl.constexpr):
    """Channels of the rows of a block in a plane, [16], and which rows have none (layout.py, `channel_order`)."""
    row = tl.arange(0, 16)
    return plane * WORDS + block * 16 + row % 8 * 2 + row // 8, row % 8 < block_words(block, WORDS) // 2


@triton.jit
def load_words(
    words, tile, last,
    WINDOW: tl.constexpr, TILE: tl.constexpr, WORDS: tl.constexpr, CHANNELS_FIRST: tl.constexpr,
):  # fmt: skip
    """Words of a tile: for every 16 of its TILE tokens, the blocks of 16 words, [tokens, words] or its transpose.

    Args:
        words: Of a head.
        tile: Index of the tile; those past `last` read that one again.
    """
    PARTS: tl.constexpr = (WINDOW + TILE - 1) // TILE
    at = tl.minimum(tile, last)
    token = at // PARTS * WINDOW + at % PARTS * TILE
    loaded = ()
    for t in tl.static_range(TILE // 16):
        row = tl.arange(0, 16)
        if WINDOW % TILE != 0:
            # Rows past the end of the window: any of its words will do, nothing is seen through them.
            row = tl.minimum(row, WINDOW - 1 - (at % PARTS * TILE + t * 16))
            row = tl.maximum(row, -(t * 16))
        row = (token + t * 16 + row) * WORDS
        for block in tl.static_range((WORDS + 15) // 16):
            column, present = word_column(block, WORDS)
            if CHANNELS_FIRST:
                place = words + row[None, :] + column[:, None]
                if block_words(block, WORDS) == 16:
                    loaded = loaded + (tl.load(place),)
                else:
                    loaded = loaded + (tl.load(place, mask=present[:, None], other=0),)
            else:
                place = words + row[:, None] + column[None, :]
                if block_words(block, WORDS) == 16:
                    loaded = loaded + (tl.load(place),)
                else:
                    loaded = loaded + (tl.load(place, mask=present[None, :], other=0),)
    return loaded


@triton.jit
def load_scales(pairs, window, D: tl.constexpr, BITS: tl.constexpr):
    """Scales of a window for every block and plane, as pairs of float16 in int32, [8]: rows r and r + 8."""
    PLANES: tl.constexpr = 16 // BITS
    WORDS: tl.constexpr = D // PLANES
    pair = tl.arange(0, 8)
    loaded = ()
    for block in tl.static_range((WORDS + 15) // 16):
        for plane in tl.static_range(PLANES):
            place = pairs + window * (D // 2) + (plane * WORDS + block * 16) // 2 + pair
            if block_words(block, WORDS) == 16:
                loaded = loaded + (tl.load(place),)
            else:
                loaded = loaded + (tl.load(place, mask=pair < block_words(block, WORDS) // 2, other=0),)
    return loaded


@triton.jit
def rows_of(pairs):
    """Scales of the 16 rows of a block, [16]."""
    low = pairs.to(tl.int16).to(tl.float16, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.reshape(tl.trans(tl.join(low, high)), [16])
