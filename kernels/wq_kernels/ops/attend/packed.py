"""Attention of up to 8 query rows over packed windows, register by register: the path of a decode step on a GPU.

With q a query, c codes, s and m a window's scales and minima, and t a token:
    score:  q . k_t = (q * s) . c_t + q . m
    output: sum_t p_t v_t = s * sum_t p_t c_t + m * sum_t p_t
The terms with minima are products over windows instead of tokens, 16 windows at a time: q . m before the windows are
read, and m times the sums of p after them.

Lane 4 * g + q owns the channels [q * D / 4, (q + 1) * D / 4) of the keys of tokens g and g + 8, and the channels
[g * D / 8, (g + 1) * D / 8) of the values of tokens 2q, 2q + 1, 2q + 8 and 2q + 9: words and scales come from memory
straight into the registers that products take, and nothing passes through shared memory. What a product calls its inner
index is free to be any order of channels, so that each lane's lie side by side.

Queries are divided by a power of two before they meet the scales in float16, so that no product overflows: scales
cannot exceed 65504.
"""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl

from wq_kernels.ops.attend.lanes import (
    LANES,
    across,
    high_halves,
    load_registers,
    low_halves,
    multiply,
    multiply_add,
    of_lane,
    store_register,
    store_registers,
    to_floats,
    to_halves,
    transpose,
)
from wq_kernels.ops.attend.operands import (
    as_int32,
    in_units,
    load_query,
    load_tokens,
    paired,
    planes_of,
    values_of_token_pair,
)
from wq_kernels.ops.attend.planes import CODE_UNIT, FIRST_PREFETCH, code_unit, prefetch_windows

# Windows whose minima are taken together: the rows of a product.
BLOCK = tl.constexpr(16)
# How far scores may rise above what weights are measured from, as a power of two: while they do not, nothing decays.
MAX_RISE = tl.constexpr(8.0)
# Windows that L2 is asked for at a time, and how many windows ahead. More would push each other out of it: all programs
# of a full card do the same.
AHEAD = tl.constexpr(2)
# Below any score, and no infinity, whose difference to itself is no number.
LARGE = tl.constexpr(1e30)
# Two halves of 1.
ONES = tl.constexpr(0x3C003C00)


@triton.jit
def scores_of_minima(slices, minima, window, last, D: tl.constexpr, BITS: tl.constexpr, ASSEMBLY: tl.constexpr):
    """q . m of windows [window, window + 16); those past `last` repeat it.

    Args:
        minima: Of the first window, where a lane's channels begin.
    """
    g = tl.arange(0, LANES) >> 2
    zero = tl.zeros([LANES], dtype=tl.float32)
    scores = (zero, zero, zero, zero)
    above = load_registers(minima + tl.minimum(window + g, last) * (D // 2), D // 8, ASSEMBLY)
    below = load_registers(minima + tl.minimum(window + 8 + g, last) * (D // 2), D // 8, ASSEMBLY)
    above, below = paired(above, 16 // BITS, ASSEMBLY), paired(below, 16 // BITS, ASSEMBLY)
    slices = in_units(slices, 1, BITS, ASSEMBLY)
    for i in tl.static_range(0, len(slices), 2):
        left = (above[i], below[i], above[i + 1], below[i + 1])
        scores = multiply_add(left, (slices[i], slices[i + 1]), scores, ASSEMBLY)
    return scores


@triton.jit
def tile_scores(slices, scales, words, bias, factor, TILE: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr,
                ASSEMBLY: tl.constexpr):  # fmt: skip
    """(q * s) . c + q . m in base 2, a sum for every 16 tokens.

    Args:
        bias: q . m, as `factor` of columns 2q and 2q + 1.
        factor: What both are multiplied by.
    """
    PLANES: tl.constexpr = 16 // BITS
    COUNT: tl.constexpr = D * BITS // 128
    scales = paired(scales, PLANES, ASSEMBLY)
    queries = ()
    for i in tl.static_range(len(scales)):
        queries = queries + (multiply(slices[i], scales[i], ASSEMBLY),)
    scores = ()
    for t in tl.static_range(TILE // 16):
        zero = tl.zeros([LANES], dtype=tl.float32)
        total = (zero, zero, zero, zero)
        for r in tl.static_range(COUNT):
            above = planes_of(words[2 * t * COUNT + r], BITS)
            below = planes_of(words[(2 * t + 1) * COUNT + r], BITS)
            for p in tl.static_range(0, PLANES, 2):
                left = (above[p], below[p], above[p + 1], below[p + 1])
                right = (queries[r * PLANES + p], queries[r * PLANES + p + 1])
                total = multiply_add(left, right, total, ASSEMBLY)
        scores = scores + ((
            total[0] * (factor[0] * CODE_UNIT) + bias[0] * factor[0],
            total[1] * (factor[1] * CODE_UNIT) + bias[1] * factor[1],
            total[2] * (factor[0] * CODE_UNIT) + bias[0] * factor[0],
            total[3] * (factor[1] * CODE_UNIT) + bias[1] * factor[1],
        ),)  # fmt: skip
    return scores


@triton.jit
def decayed(sums, decay):
    """Sums of columns 2q and 2q + 1 of two rows, times a decay of each column."""
    return sums[0] * decay[0], sums[1] * decay[1], sums[2] * decay[0], sums[3] * decay[1]


@triton.jit
def row_of(sums, row, ASSEMBLY: tl.constexpr):
    """Columns 2q and 2q + 1 of a row of a sum, in all lanes."""
    lane = row % 8 * 4 + (tl.arange(0, LANES) & 3)
    upper = row < 8
    return (
        of_lane(tl.where(upper, sums[0], sums[2]), lane, ASSEMBLY),
        of_lane(tl.where(upper, sums[1], sums[3]), lane, ASSEMBLY),
    )


@triton.jit
def add_to_row(sums, more, row):
    """Columns 2q and 2q + 1 added to a row of a sum."""
    g = tl.arange(0, LANES) >> 2
    above, below = g == row, g + 8 == row
    return (
        sums[0] + tl.where(above, more[0], 0.0), sums[1] + tl.where(above, more[1], 0.0),
        sums[2] + tl.where(below, more[0], 0.0), sums[3] + tl.where(below, more[1], 0.0),
    )  # fmt: skip


@triton.jit
def follow_rise(base, scores, total, block_sums, outputs, ASSEMBLY: tl.constexpr):
    """What weights are measured from, once a score is far above it; what was summed then decays."""
    highest = ()
    for e in tl.static_range(2):
        found = tl.maximum(scores[0][e], scores[0][2 + e])
        for t in tl.static_range(1, len(scores)):
            found = tl.maximum(found, tl.maximum(scores[t][e], scores[t][2 + e]))
        highest = highest + (found,)
    rises = (highest[0] > base[0] + MAX_RISE) | (highest[1] > base[1] + MAX_RISE)
    if tl.max(rises.to(tl.int32), axis=0) > 0:
        new_base = ()
        for e in tl.static_range(2):
            found = highest[e]
            for step in tl.static_range(2, 5):
                found = tl.maximum(found, across(found, 1 << step, ASSEMBLY))
            new_base = new_base + (tl.maximum(base[e], found),)
        decay = (tl.exp2(base[0] - new_base[0]), tl.exp2(base[1] - new_base[1]))
        base = new_base
        total = (total[0] * decay[0], total[1] * decay[1])
        block_sums = decayed(block_sums, decay)
        new_outputs = ()
        for i in tl.static_range(len(outputs)):
            new_outputs = new_outputs + (decayed(outputs[i], decay),)
        outputs = new_outputs
    return base, total, block_sums, outputs


@triton.jit
def softmax(scores, base, ASSEMBLY: tl.constexpr):
    """Weights of every 16 tokens as a right operand, and the sum of all, of columns 2q and 2q + 1."""
    ones = tl.full([LANES], ONES, dtype=tl.int32)
    zero = tl.zeros([LANES], dtype=tl.float32)
    sums = (zero, zero, zero, zero)
    weights = ()
    for t in tl.static_range(len(scores)):
        above = to_halves(tl.exp2(scores[t][0] - base[0]), tl.exp2(scores[t][1] - base[1]), ASSEMBLY)
        below = to_halves(tl.exp2(scores[t][2] - base[0]), tl.exp2(scores[t][3] - base[1]), ASSEMBLY)
        right = (transpose(above, ASSEMBLY), transpose(below, ASSEMBLY))
        weights = weights + (right,)
        sums = multiply_add((ones, ones, ones, ones), right, sums, ASSEMBLY)
    return weights, (sums[0], sums[1])


@triton.jit
def packed_outputs(outputs, weights, words, scales, TILE: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr,
                   ASSEMBLY: tl.constexpr):  # fmt: skip
    """Outputs in code units plus s * sum_t p_t c_t.

    Args:
        outputs: For every two neighbouring channels of a lane, those of columns 2q and 2q + 1 of each.
    """
    PLANES: tl.constexpr = 16 // BITS
    WORDS: tl.constexpr = D * BITS // 128
    COUNT: tl.constexpr = (WORDS + 1) // 2
    new_outputs = ()
    for h in tl.static_range(WORDS):
        zero = tl.zeros([LANES], dtype=tl.float32)
        sums = ()
        for _ in tl.static_range(PLANES // 2):
            sums = sums + ((zero, zero, zero, zero),)
        for t in tl.static_range(TILE // 16):
            halves = ()
            for k in tl.static_range(2):
                even = words[(2 * t + k) * 2 * COUNT + h // 2]
                odd = words[((2 * t + k) * 2 + 1) * COUNT + h // 2]
                halves = halves + (values_of_token_pair(even, odd, h, WORDS, BITS, ASSEMBLY),)
            new_sums = ()
            for i in tl.static_range(PLANES // 2):
                left = (halves[0][2 * i], halves[0][2 * i + 1], halves[1][2 * i], halves[1][2 * i + 1])
                new_sums = new_sums + (multiply_add(left, weights[t], sums[i], ASSEMBLY),)
            sums = new_sums
        for i in tl.static_range(PLANES // 2):
            low, high = to_floats(scales[h * (PLANES // 2) + i], ASSEMBLY)
            old = outputs[h * (PLANES // 2) + i]
            new_outputs = new_outputs + ((
                old[0] + sums[i][0] * low, old[1] + sums[i][1] * low,
                old[2] + sums[i][2] * high, old[3] + sums[i][3] * high,
            ),)  # fmt: skip
    return new_outputs


@triton.jit
def add_minima(outputs, sums, minima, window, last, D: tl.constexpr, PLANES: tl.constexpr, ASSEMBLY: tl.constexpr):
    """Outputs plus m * sum_t p_t of windows [window, window + 16).

    Args:
        sums: Of weights, of windows g and g + 8 and columns 2q and 2q + 1; 0 for windows past `last`.
        minima: Of the first window, where a lane's channels begin.
    """
    q = tl.arange(0, LANES) & 3
    # As a sum of two float16: one alone would shift outputs by more than all other roundings.
    right, rest = (), ()
    for h in tl.static_range(2):
        first, second = sums[2 * h] * (0.5**MAX_RISE), sums[2 * h + 1] * (0.5**MAX_RISE)
        halves = to_halves(first, second, ASSEMBLY)
        low, high = to_floats(halves, ASSEMBLY)
        right = right + (transpose(halves, ASSEMBLY),)
        rest = rest + (transpose(to_halves(first - low, second - high, ASSEMBLY), ASSEMBLY),)
    loaded = ()
    for k in tl.static_range(4):
        at = tl.minimum(window + k // 2 * 8 + 2 * q + k % 2, last)
        loaded = loaded + (load_registers(minima + at * (D // 2), D // 16, ASSEMBLY),)
    new_outputs = ()
    for i in tl.static_range(D // 16):
        left = (
            low_halves(loaded[0][i], loaded[1][i], ASSEMBLY), high_halves(loaded[0][i], loaded[1][i], ASSEMBLY),
            low_halves(loaded[2][i], loaded[3][i], ASSEMBLY), high_halves(loaded[2][i], loaded[3][i], ASSEMBLY),
        )  # fmt: skip
        zero = tl.zeros([LANES], dtype=tl.float32)
        added = multiply_add(left, right, (zero, zero, zero, zero), ASSEMBLY)
        added = multiply_add(left, rest, added, ASSEMBLY)
        low = 2**MAX_RISE / code_unit(2 * i % PLANES, 16 // PLANES)
        high = 2**MAX_RISE / code_unit((2 * i + 1) % PLANES, 16 // PLANES)
        old = outputs[i]
        new_outputs = new_outputs + ((
            old[0] + added[0] * low, old[1] + added[1] * low, old[2] + added[2] * high, old[3] + added[3] * high
        ),)  # fmt: skip
    return new_outputs


@triton.jit
def attend_packed(
    p_q, rows, row, key, value, first, stop, scaling, output, lse, stride,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr,
    ASSEMBLY: tl.constexpr, USE_PREFETCH: tl.constexpr,
):  # fmt: skip
    """Attention over tiles [first, stop) of a head's windows, stored as `store_partial` does.

    Args:
        p_q: Where the query row of column g begins.
        rows: Query rows of the KV head.
        row: First one of the block of 8.
        key: (data, scale, minimum) of the head, as `value`.
        scaling: Of the scores, in base 2.
        output: float32, where the partial output of query row 0 goes; `stride` on that of the next one.
        lse: float32, likewise, every `stride` / D.
    """
    PARTS: tl.constexpr = WINDOW // TILE
    PLANES: tl.constexpr = 16 // KEY_BITS
    KEY_ROW: tl.constexpr = D * KEY_BITS // 32
    VALUE_ROW: tl.constexpr = D * VALUE_BITS // 32
    VALUE_COUNT: tl.constexpr = (VALUE_ROW + 7) // 8
    lane = tl.arange(0, LANES)
    g, q = lane >> 2, lane & 3
    p_key_words = as_int32(key[0]) + g * KEY_ROW + q * (KEY_ROW // 4)
    p_value_words = as_int32(value[0]) + 2 * q * VALUE_ROW + g * VALUE_ROW // 8
    p_key_scales, p_key_minima = as_int32(key[1]) + q * (D // 8), as_int32(key[2]) + q * (D // 8)
    p_value_scales, p_value_minima = as_int32(value[1]) + g * (D // 16), as_int32(value[2]) + g * (D // 16)
    start, last = first // PARTS, (stop - 1) // PARTS
    if USE_PREFETCH:
        prefetch_windows(key, start, tl.minimum(FIRST_PREFETCH, last + 1 - start), KEY_BITS, WINDOW, D)
        prefetch_windows(value, start, tl.minimum(FIRST_PREFETCH, last + 1 - start), VALUE_BITS, WINDOW, D)
    key_words = load_tokens(p_key_words, first, 1, KEY_ROW // 4, WINDOW, TILE, KEY_ROW, ASSEMBLY)
    key_scales = load_registers(p_key_scales + start * (D // 2), D // 8, ASSEMBLY)
    value_words = load_tokens(p_value_words, first, 2, VALUE_COUNT, WINDOW, TILE, VALUE_ROW, ASSEMBLY)
    value_scales = load_registers(p_value_scales + start * (D // 2), D // 16, ASSEMBLY)
    slices, unit = load_query(p_q + q * (D // 4), D, PLANES, ASSEMBLY)
    slices = in_units(slices, -1, KEY_BITS, ASSEMBLY)
    # What is known of column g, lanes of columns 2q and 2q + 1 need.
    factor = (of_lane(unit, 8 * q, ASSEMBLY) * scaling, of_lane(unit, 8 * q + 4, ASSEMBLY) * scaling)
    zero = tl.zeros([LANES], dtype=tl.float32)
    none = (zero, zero, zero, zero)
    base, total, block_sums, outputs = (zero - LARGE, zero - LARGE), (zero, zero), none, ()
    for _ in tl.static_range(D // 16):
        outputs = outputs + (none,)
    biases = scores_of_minima(slices, p_key_minima, start, last, D, KEY_BITS, ASSEMBLY)
    scores = tile_scores(
        slices, key_scales, key_words, row_of(biases, 0, ASSEMBLY), factor, TILE, D, KEY_BITS, ASSEMBLY
    )
    second = tl.minimum(first + 1, stop - 1)
    key_words = load_tokens(p_key_words, second, 1, KEY_ROW // 4, WINDOW, TILE, KEY_ROW, ASSEMBLY)
    key_scales = load_registers(p_key_scales + second // PARTS * (D // 2), D // 8, ASSEMBLY)
    # A round is the values of one tile and the keys of the next: two chains of products that do not wait for each
    # other. In the last round the keys are read again for nothing; a branch would keep the chains apart.
    for tile in tl.range(first, stop):
        at, following = tl.minimum(tile + 1, stop - 1), tl.minimum(tile + 2, stop - 1)
        inner, next_inner = tile // PARTS - start, at // PARTS - start
        if (next_inner % BLOCK == 0) & (at % PARTS == 0) & (at > tile):
            biases = scores_of_minima(slices, p_key_minima, start + next_inner, last, D, KEY_BITS, ASSEMBLY)
        if USE_PREFETCH:
            ahead = start + next_inner + AHEAD
            if (next_inner % AHEAD == 0) & (at % PARTS == 0) & (ahead <= last):
                prefetch_windows(key, ahead, tl.minimum(AHEAD, last + 1 - ahead), KEY_BITS, WINDOW, D)
                prefetch_windows(value, ahead, tl.minimum(AHEAD, last + 1 - ahead), VALUE_BITS, WINDOW, D)
        base, total, block_sums, outputs = follow_rise(base, scores, total, block_sums, outputs, ASSEMBLY)
        weights, sums = softmax(scores, base, ASSEMBLY)
        total = (total[0] + sums[0], total[1] + sums[1])
        block_sums = add_to_row(block_sums, sums, inner % BLOCK)
        outputs = packed_outputs(outputs, weights, value_words, value_scales, TILE, D, VALUE_BITS, ASSEMBLY)
        scores = tile_scores(
            slices, key_scales, key_words, row_of(biases, next_inner % BLOCK, ASSEMBLY), factor,
            TILE, D, KEY_BITS, ASSEMBLY,
        )  # fmt: skip
        value_words = load_tokens(p_value_words, at, 2, VALUE_COUNT, WINDOW, TILE, VALUE_ROW, ASSEMBLY)
        value_scales = load_registers(p_value_scales + at // PARTS * (D // 2), D // 16, ASSEMBLY)
        key_words = load_tokens(p_key_words, following, 1, KEY_ROW // 4, WINDOW, TILE, KEY_ROW, ASSEMBLY)
        key_scales = load_registers(p_key_scales + following // PARTS * (D // 2), D // 8, ASSEMBLY)
        if ((inner % BLOCK == BLOCK - 1) & (tile % PARTS == PARTS - 1)) | (tile == stop - 1):
            window = start + inner // BLOCK * BLOCK
            outputs = add_minima(outputs, block_sums, p_value_minima, window, last, D, 16 // VALUE_BITS, ASSEMBLY)
            block_sums = none
    store_outputs(outputs, base, total, rows, row, output, lse, stride, D, VALUE_BITS, ASSEMBLY)


@triton.jit
def store_outputs(outputs, base, total, rows, row, output, lse, stride, D: tl.constexpr, BITS: tl.constexpr,
                  ASSEMBLY: tl.constexpr):  # fmt: skip
    """Normalise and store the channels of a lane, of the rows of its two columns."""
    PLANES: tl.constexpr = 16 // BITS
    lane = tl.arange(0, LANES)
    g, q = lane >> 2, lane & 3
    for e in tl.static_range(2):
        at = row + 2 * q + e
        share = 1.0 / total[e]
        p_output = output + at.to(tl.int64) * stride + g * (D // 8)
        for i in tl.static_range(0, D // 16, 2):
            values = ()
            for j in tl.static_range(2):
                for h in tl.static_range(2):
                    unit = code_unit((2 * (i + j) + h) % PLANES, BITS)
                    values = values + (outputs[i + j][2 * h + e] * (share * unit),)
            store_registers(p_output + 2 * i, values, at < rows, ASSEMBLY)
        p_lse = lse + at.to(tl.int64) * (stride // D)
        store_register(p_lse, base[e] + tl.log2(total[e]), (at < rows) & (g == 0), ASSEMBLY)
