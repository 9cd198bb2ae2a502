"""How attention reads a block: where a tile's words and metadata lie, and how a byte of codes becomes values.

Packed values come as x / 2**bits, in float16 whatever the half type of the model: its 11 bits hold codes and scales
better than the 8 of bfloat16. code / 2**bits is exact there, and code / 2**bits * scale finite for every finite scale;
the factor 2**bits goes into the scale of the scores and of the output.
"""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl


def unpack_assembly(bits: int) -> tl.constexpr:
    """PTX that turns one byte of two words into 8 / bits pairs of code / 2**bits * scale + minimum.

    The byte goes to the top of each half; a shift and one logic operation per pair put the code into the top mantissa
    bits of 1.0, which is exactly 1 + code / 2**bits, and 1 is taken off again before the scale comes on.
    Operands: the output pairs, two words, the byte's selector (twice, since operands come in pairs), scales, minima.
    """
    planes = 8 // bits
    low, high, selector, _, scale, minimum = (f"${planes + i}" for i in range(6))
    mask = ((2**bits - 1) << (10 - bits)) * 0x10001
    lines = [".reg .b32 bytes, code, minus_one", "mov.b32 minus_one, 0xbc00bc00"]
    lines += [f"prmt.b32 bytes, {low}, {high}, {selector}"]
    for plane in range(planes):
        lines += [
            f"shr.u32 code, bytes, {bits - 2 + plane * bits}",
            f"lop3.b32 code, code, {mask:#x}, 0x3c003c00, 0xea",
            "add.rn.f16x2 code, code, minus_one",
            f"fma.rn.f16x2 ${plane}, code, {scale}, {minimum}",
        ]
    return tl.constexpr("{ " + "; ".join(lines) + "; }")


UNPACK_2, UNPACK_4, UNPACK_8 = (unpack_assembly(bits) for bits in (2, 4, 8))


@triton.jit
def byte_planes(words, scale, minimum, BYTE: tl.constexpr, BITS: tl.constexpr, USE_ASSEMBLY: tl.constexpr):
    """The 8 / BITS planes x / 2**BITS of byte BYTE of each word, a tuple of tensors of scale's dtype and words' shape.

    Args:
        words: int32, any shape.
        scale: Same shape.
        minimum: Same shape, minimum / 2**BITS.
        USE_ASSEMBLY: float16 on a GPU only; an interpreter cannot run it.
    """
    planes = ()
    if USE_ASSEMBLY:
        operands = [words, 0x4400 + 0x1111 * BYTE, scale, minimum]
        if BITS == 2:
            planes = tl.inline_asm_elementwise(
                UNPACK_2, "=r,=r,=r,=r,r,r,r,r,r,r", operands, (tl.float16, tl.float16, tl.float16, tl.float16), True, 2
            )
        elif BITS == 4:
            planes = tl.inline_asm_elementwise(
                UNPACK_4, "=r,=r,r,r,r,r,r,r", operands, (tl.float16, tl.float16), True, 2
            )
        else:
            planes = (tl.inline_asm_elementwise(UNPACK_8, "=r,r,r,r,r,r,r", operands, tl.float16, True, 2),)
    else:
        for i in tl.static_range(8 // BITS):
            code = (words >> (8 * BYTE + BITS * i)) & (2**BITS - 1)
            fraction = code.to(tl.float32) * (0.5**BITS)
            planes = planes + ((fraction * scale.to(tl.float32) + minimum.to(tl.float32)).to(scale.dtype),)
    return planes


@triton.jit
def source_row(row, part, PARTS: tl.constexpr, PER_WINDOW: tl.constexpr, ROWS_PER_WINDOW: tl.constexpr):
    """Row of a block's data for part `part` of tile rows `row`, and whether the window reaches that far.

    A tile row is PARTS rows of the data; a window has PER_WINDOW rows of data in ROWS_PER_WINDOW tile rows.
    """
    if ROWS_PER_WINDOW * PARTS == PER_WINDOW:
        return row * PARTS + part, row >= 0
    inner = row % ROWS_PER_WINDOW * PARTS + part
    return row // ROWS_PER_WINDOW * PER_WINDOW + inner, inner < PER_WINDOW


@triton.jit
def load_metadata(
    block, row, channel, mask,
    BITS: tl.constexpr, ROWS_PER_WINDOW: tl.constexpr, D: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Scale and minimum / 2**BITS of the windows of tile rows."""
    offset = row // ROWS_PER_WINDOW * D + channel
    scale = tl.load(block[1] + offset, mask=mask, other=0.0)
    minimum = tl.load(block[2] + offset, mask=mask, other=0.0).to(tl.float32) * (0.5**BITS)
    return scale.to(DTYPE), minimum.to(DTYPE)


@triton.jit
def head_block(block, windows, BITS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr):
    """Pointers of a block moved past `windows` windows, to where a head begins."""
    if BITS == 16:
        return (block[0] + windows * WINDOW * D, block[1], block[2])
    metadata = windows * D
    return (block[0] + metadata * ((WINDOW * BITS + 31) // 32), block[1] + metadata, block[2] + metadata)
