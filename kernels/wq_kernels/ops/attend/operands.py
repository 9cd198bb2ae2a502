"""From packed memory to the operands of products: a lane's words, queries and the numbers that go with them."""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from wq_kernels.ops.attend.lanes import (
    LANES,
    across,
    chosen_halves,
    high_halves,
    load_registers,
    low_halves,
    multiply,
    to_floats,
    to_halves,
)
from wq_kernels.ops.attend.planes import position, power_of_two_above


@triton.constexpr_function
def power_of_two(n):
    """float16 2**n twice in an int32."""
    return (n + 15) * 0x04000400


@triton.jit
def as_int32(pointer):
    return pointer.to(tl.pointer_type(tl.int32))


@triton.jit
def planes_of(word, BITS: tl.constexpr):
    """The 16 / BITS planes of the codes of a register: code * 2**(position - 24) in both halves."""
    planes = ()
    for p in tl.static_range(16 // BITS):
        shifted = word >> (BITS * p - position(p, BITS))
        planes = planes + (shifted & (((2**BITS - 1) << position(p, BITS)) * 0x10001),)
    return planes


@triton.jit
def paired(registers, PLANES: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Values of neighbouring channels as pairs of the channels that share a plane of two neighbouring words."""
    pairs = ()
    for word in tl.static_range(len(registers) // PLANES):
        for p in tl.static_range(PLANES):
            even = registers[word * PLANES + p // 2]
            odd = registers[word * PLANES + PLANES // 2 + p // 2]
            if p % 2 == 0:
                pairs = pairs + (low_halves(even, odd, ASSEMBLY),)
            else:
                pairs = pairs + (high_halves(even, odd, ASSEMBLY),)
    return pairs


@triton.jit
def load_tokens(words, tile, TOKENS: tl.constexpr, COUNT: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr,
                ROW: tl.constexpr, ASSEMBLY: tl.constexpr):  # fmt: skip
    """A lane's words of a tile, COUNT of each of its TOKENS neighbours in every 8 tokens; a token has ROW words."""
    PARTS: tl.constexpr = WINDOW // TILE
    first = words + (tile // PARTS * WINDOW + tile % PARTS * TILE) * ROW
    loaded = ()
    for t in tl.static_range(TILE // 8):
        for e in tl.static_range(TOKENS):
            loaded = loaded + load_registers(first + (t * 8 + e) * ROW, COUNT, ASSEMBLY)
    return loaded


@triton.jit
def load_query(p_q, D: tl.constexpr, PLANES: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Queries over a power of two as a right operand; and that power, of column g.

    Args:
        p_q: Where a lane's channels of the query row of column g begin.
    """
    loaded = load_registers(as_int32(p_q), D // 8, ASSEMBLY)
    values = ()
    largest = tl.zeros([LANES], dtype=tl.float32)
    for i in tl.static_range(len(loaded)):
        if p_q.dtype.element_ty == tl.bfloat16:
            low = (loaded[i] << 16).to(tl.float32, bitcast=True)
            high = (loaded[i] & -65536).to(tl.float32, bitcast=True)
        else:
            low, high = to_floats(loaded[i], ASSEMBLY)
        values = values + ((low, high),)
        largest = tl.maximum(largest, tl.maximum(tl.abs(low), tl.abs(high)))
    for step in tl.static_range(2):
        largest = tl.maximum(largest, across(largest, 1 << step, ASSEMBLY))
    unit = power_of_two_above(largest)
    halves = ()
    for i in tl.static_range(len(values)):
        halves = halves + (to_halves(values[i][0] / unit, values[i][1] / unit, ASSEMBLY),)
    return paired(halves, PLANES, ASSEMBLY), unit


@triton.jit
def in_units(slices, SIGN: tl.constexpr, BITS: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Queries over the positions of the planes' codes as powers of two (SIGN -1), or those times them."""
    PLANES: tl.constexpr = 16 // BITS
    multiplied = ()
    for i in tl.static_range(len(slices)):
        if position(i % PLANES, BITS) == 0:
            multiplied = multiplied + (slices[i],)
        else:
            factor = tl.full([LANES], power_of_two(SIGN * position(i % PLANES, BITS)), dtype=tl.int32)
            multiplied = multiplied + (multiply(slices[i], factor, ASSEMBLY),)
    return multiplied


@triton.jit
def values_of_token_pair(even, odd, h: tl.constexpr, WORDS: tl.constexpr, BITS: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Planes of a lane's int16 word h of two neighbouring tokens."""
    if WORDS == 1:
        upper = (tl.arange(0, LANES) >> 2) % 2 == 1
        return planes_of(chosen_halves(even, odd, upper, ASSEMBLY), BITS)
    elif h % 2 == 0:
        return planes_of(low_halves(even, odd, ASSEMBLY), BITS)
    else:
        return planes_of(high_halves(even, odd, ASSEMBLY), BITS)
