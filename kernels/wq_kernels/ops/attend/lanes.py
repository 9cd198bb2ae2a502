"""One warp seen lane by lane: tensors of 32 elements, one to a lane, and instructions that Triton has no name for.

A value of 32 bits in every lane is a register. An operand of the tensor cores' `mma.m16n8k16` is a few registers whose
places in the matrix PTX defines (PTX ISA, "Matrix Fragments for mma.m16n8k16"): with lane = 4 * g + q,

    left  [16, 16]: 4 registers of two halves: rows g and g + 8 of columns 2q, 2q + 1, then of columns 2q + 8, 2q + 9
    right [16, 8]:  2 registers of two halves: rows 2q, 2q + 1, then 2q + 8, 2q + 9, of column g
    sum   [16, 8]:  4 float32: columns 2q and 2q + 1 of row g, then of row g + 8

Each function has a form in assembly for GPUs and a portable one, which Triton's interpreter runs too.
"""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc"

from __future__ import annotations

import triton
import triton.language as tl

LANES = tl.constexpr(32)


@triton.jit
def low_half(x):
    """float16 in the lower half of int32."""
    return (x & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def high_half(x):
    """float16 in the upper half of int32."""
    return (x >> 16).to(tl.int16).to(tl.float16, bitcast=True)


@triton.jit
def join_halves(low, high):
    """Two float16 as int32."""
    low = low.to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
    return low | (high.to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def load_registers(pointer, COUNT: tl.constexpr, ASSEMBLY: tl.constexpr):
    """COUNT int32 from where each lane points to: 1, 2, or a multiple of 4, aligned to their size or to 16 bytes."""
    loaded = ()
    if not ASSEMBLY:
        for i in tl.static_range(COUNT):
            loaded = loaded + (tl.load(pointer + i),)
    elif COUNT == 1:
        loaded = (tl.inline_asm_elementwise("ld.global.b32 $0, [$1];", "=r,l", [pointer], tl.int32, False, 1),)
    elif COUNT == 2:
        loaded = tl.inline_asm_elementwise(
            "ld.global.v2.b32 {$0, $1}, [$2];", "=r,=r,l", [pointer], (tl.int32, tl.int32), False, 1
        )
    else:
        for i in tl.static_range(COUNT // 4):
            loaded = loaded + tl.inline_asm_elementwise(
                "ld.global.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l", [pointer + 4 * i],
                (tl.int32, tl.int32, tl.int32, tl.int32), False, 1,
            )  # fmt: skip
    return loaded


@triton.jit
def store_registers(pointer, values, mask, ASSEMBLY: tl.constexpr):
    """Four float32 to where each lane points to, aligned to 16 bytes, where `mask` is true."""
    if ASSEMBLY:
        tl.inline_asm_elementwise(
            "{ .reg .pred here; setp.ne.b32 here, $6, 0; @here st.global.v4.f32 [$1], {$2, $3, $4, $5}; "
            "mov.u32 $0, 0; }",
            "=r,l,f,f,f,f,r", [pointer.to(tl.int64), values[0], values[1], values[2], values[3], mask.to(tl.int32)],
            tl.int32, False, 1,
        )  # fmt: skip
    else:
        for i in tl.static_range(4):
            tl.store(pointer + i, values[i], mask=mask)


@triton.jit
def store_register(pointer, value, mask, ASSEMBLY: tl.constexpr):
    """A float32 to where each lane points to, where `mask` is true."""
    if ASSEMBLY:
        tl.inline_asm_elementwise(
            "{ .reg .pred here; setp.ne.b32 here, $3, 0; @here st.global.f32 [$1], $2; mov.u32 $0, 0; }",
            "=r,l,f,r", [pointer.to(tl.int64), value, mask.to(tl.int32)], tl.int32, False, 1,
        )  # fmt: skip
    else:
        tl.store(pointer, value, mask=mask)


@triton.jit
def low_halves(x, y, ASSEMBLY: tl.constexpr):
    """Lower halves of x and of y in one register."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x5410;", "=r,r,r", [x, y], tl.int32, True, 1)
    return (x & 0xFFFF) | (y << 16)


@triton.jit
def high_halves(x, y, ASSEMBLY: tl.constexpr):
    """Upper halves of x and of y in one register."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", [x, y], tl.int32, True, 1)
    return ((x >> 16) & 0xFFFF) | (y & -65536)


@triton.jit
def chosen_halves(x, y, upper, ASSEMBLY: tl.constexpr):
    """Upper halves of x and of y in lanes where `upper` is true, else lower halves."""
    if ASSEMBLY:
        selector = tl.where(upper, 0x7632, 0x5410)
        return tl.inline_asm_elementwise("prmt.b32 $0, $1, $2, $3;", "=r,r,r,r", [x, y, selector], tl.int32, True, 1)
    return tl.where(upper, high_halves(x, y, False), low_halves(x, y, False))


@triton.jit
def multiply(x, y, ASSEMBLY: tl.constexpr):
    """Products of two float16 in each register."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise("mul.rn.f16x2 $0, $1, $2;", "=r,r,r", [x, y], tl.int32, True, 1)
    return join_halves(low_half(x) * low_half(y), high_half(x) * high_half(y))


@triton.jit
def to_halves(low, high, ASSEMBLY: tl.constexpr):
    """Two float32 as float16 in one register."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], tl.int32, True, 1)
    return join_halves(low.to(tl.float16), high.to(tl.float16))


@triton.jit
def to_floats(x, ASSEMBLY: tl.constexpr):
    """The two float16 of a register as float32."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }",
            "=f,=f,r", [x], (tl.float32, tl.float32), True, 1,
        )  # fmt: skip
    return low_half(x).to(tl.float32), high_half(x).to(tl.float32)


@triton.jit
def across(x, XOR: tl.constexpr, ASSEMBLY: tl.constexpr):
    """x of the lane whose number differs in the bits of XOR."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "shfl.sync.bfly.b32 $0, $1, $2, 0x1f, 0xffffffff;", "=f,f,r",
            [x, tl.full([LANES], XOR, dtype=tl.int32)], tl.float32, True, 1,
        )  # fmt: skip
    return tl.gather(x, tl.arange(0, LANES) ^ XOR, 0)


@triton.jit
def of_lane(x, lane, ASSEMBLY: tl.constexpr):
    """x of another lane."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "shfl.sync.idx.b32 $0, $1, $2, 0x1f, 0xffffffff;", "=f,f,r", [x, lane], tl.float32, True, 1
        )
    return tl.gather(x, lane, 0)


@triton.jit
def transpose(x, ASSEMBLY: tl.constexpr):
    """A matrix [8, 8] of float16 turned over: lane 4 * g + q holds columns 2q and 2q + 1 of row g."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r", [x], tl.int32, True, 1
        )
    matrix = tl.reshape(tl.join(x & 0xFFFF, (x >> 16) & 0xFFFF), [8, 8])
    low, high = tl.split(tl.reshape(tl.trans(matrix), [LANES, 2]))
    return low | (high << 16)


@triton.jit
def multiply_add(left, right, total, ASSEMBLY: tl.constexpr):
    """left @ right + total, as the operands of `mma.m16n8k16`: float16 times float16, added up in float32."""
    if ASSEMBLY:
        return tl.inline_asm_elementwise(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, "
            "{$10, $11, $12, $13};",
            "=f,=f,=f,=f,r,r,r,r,r,r,0,1,2,3",
            [left[0], left[1], left[2], left[3], right[0], right[1], total[0], total[1], total[2], total[3]],
            (tl.float32, tl.float32, tl.float32, tl.float32), False, 1,
        )  # fmt: skip
    halves = ()
    for i in tl.static_range(4):
        halves = halves + (tl.join(low_half(left[i]), high_half(left[i])),)
    rows = tl.join(tl.join(halves[0], halves[1]), tl.join(halves[2], halves[3]))
    a = tl.reshape(tl.permute(tl.reshape(rows, [8, 4, 2, 2, 2]), [3, 0, 4, 1, 2]), [16, 16])
    columns = tl.join(
        tl.join(low_half(right[0]), high_half(right[0])), tl.join(low_half(right[1]), high_half(right[1]))
    )
    b = tl.reshape(tl.permute(tl.reshape(columns, [8, 4, 2, 2]), [3, 1, 2, 0]), [16, 8])
    product = tl.permute(tl.reshape(tl.dot(a, b), [2, 8, 4, 2]), [1, 2, 3, 0])
    above, below = tl.split(tl.reshape(product, [LANES, 2, 2]))
    c0, c1 = tl.split(above)
    c2, c3 = tl.split(below)
    return total[0] + c0, total[1] + c1, total[2] + c2, total[3] + c3
