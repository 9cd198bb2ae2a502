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

# Windows that L2 is asked for when a stretch begins: else every phase of a short one waits for memory anew.
FIRST_PREFETCH = tl.constexpr(4)
# Of a subnormal float16 to its mantissa.
CODE_UNIT = tl.constexpr(16777216.0)


@triton.constexpr_function
def position(plane, bits):
    """Lowest bit of a plane's code: in place inside the 10 bits of a mantissa, else after one shift of its word."""
    in_place = 10 // bits
    return bits * plane if plane < in_place else bits * plane - max(bits * in_place, 6)


@triton.constexpr_function
def code_unit(plane, bits):
    """What a sum of products with the codes of a plane is multiplied by."""
    return CODE_UNIT.value * 0.5 ** position(plane, bits)


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
def plane_channels(plane, block: tl.constexpr, WORDS: tl.constexpr, PLANES: tl.constexpr):
    """Channels of a plane of the words of a block, [16], and which rows have one."""
    word = block * 16 + tl.arange(0, 16)
    return word * PLANES + plane, word < WORDS


@triton.jit
def block_channels(block: tl.constexpr, WORDS: tl.constexpr, PLANES: tl.constexpr):
    """First channel of the words of a block, [16]: of plane p it is p more. Rows past the end repeat the last word."""
    row = tl.minimum(tl.arange(0, 16), block_words(block, WORDS) - 1)
    return (block * 16 + row) * PLANES


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
            column = block * 16 + tl.arange(0, 16)
            present = column < WORDS
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
def load_channels(p_block, PLANES: tl.constexpr, USE_ASSEMBLY: tl.constexpr):
    """float16 of the PLANES channels of the words at `p_block`: a tuple of tensors of its shape, one for each plane.

    One load a word, which Triton neither moves into its pipeline nor through shared memory.
    """
    loaded = ()
    if USE_ASSEMBLY:
        if PLANES == 8:
            pairs = tl.inline_asm_elementwise(
                "ld.global.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l", [p_block],
                (tl.int32, tl.int32, tl.int32, tl.int32), True, 1,
            )  # fmt: skip
        elif PLANES == 4:
            pairs = tl.inline_asm_elementwise(
                "ld.global.v2.b32 {$0, $1}, [$2];", "=r,=r,l", [p_block], (tl.int32, tl.int32), True, 1
            )
        else:
            pairs = (tl.inline_asm_elementwise("ld.global.b32 $0, [$1];", "=r,l", [p_block], tl.int32, True, 1),)
        for p in tl.static_range(PLANES):
            loaded = loaded + ((pairs[p // 2] >> (p % 2 * 16)).to(tl.int16).to(tl.float16, bitcast=True),)
    else:
        for p in tl.static_range(PLANES):
            loaded = loaded + (tl.load(p_block + p),)
    return loaded


@triton.jit
def load_scales(scale, window, D: tl.constexpr, BITS: tl.constexpr, USE_ASSEMBLY: tl.constexpr):
    """Scales of a window, float16 [16] for every block and plane."""
    PLANES: tl.constexpr = 16 // BITS
    WORDS: tl.constexpr = D // PLANES
    loaded = ()
    for block in tl.static_range((WORDS + 15) // 16):
        loaded = loaded + load_channels(scale + window * D + block_channels(block, WORDS, PLANES), PLANES, USE_ASSEMBLY)
    return loaded


@triton.jit
def power_of_two_above(x):
    """The smallest power of two that exceeds float32 x >= 0 (1 for 0), at most 2**127."""
    exponent = tl.minimum((x.to(tl.int32, bitcast=True) >> 23) + 1, 254)
    return tl.where(x > 0, (exponent << 23).to(tl.float32, bitcast=True), 1.0)


@triton.jit
def prefetch_bytes(pointer, nbytes):
    """Bring bytes into L2; a multiple of 16 that begins at one."""
    tl.inline_asm_elementwise(
        "{ .reg .pred first; .reg .b32 lane; mov.u32 lane, %laneid; setp.eq.u32 first, lane, 0; "
        "@first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r", [pointer, nbytes], tl.int32, False, 1,
    )  # fmt: skip


@triton.jit
def prefetch_windows(block, window, count, BITS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr):
    """Bring windows of a block into L2."""
    if WINDOW * BITS % 8 == 0:
        prefetch_bytes(block[0] + window * (WINDOW * D * BITS // 16), count * (WINDOW * D * BITS // 8))
    if BITS != 16:
        prefetch_bytes(block[1] + window * D, count * (2 * D))
        prefetch_bytes(block[2] + window * D, count * (2 * D))
