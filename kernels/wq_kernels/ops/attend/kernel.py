"""Attention over packed segments in Triton: split-KV flash decoding, all widths in one launch, then one merge.

A program is one warp that takes one stretch of one segment and a block of the query rows of one KV head. Keys are the
left operand of the score product, tokens as rows and query rows as columns, and values the left operand of the output
product, channels as rows: few query rows waste little of a tile, and codes go from memory to the tensor cores with one
logic operation for two of them (planes.py).

With q a query, c codes, s and m a window's scales and minima, and t a token:
    score:  q . k_t = (q * s) . c_t + q . m
    output: sum_t p_t v_t = s * sum_t p_t c_t + m * sum_t p_t
The terms with minima are products over windows instead of tokens: q . m is taken for 16 windows at a time before the
stretch is read, and the sums of p are kept for one such product after it. Both lie in a small scratch buffer.

Queries are divided by a power of two before they meet the scales in float16, so that no product overflows: scales
cannot exceed 65504.
"""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc, var-annotated"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from wq_kernels.launch import AttendTile, Stretch, card, choose_tile, next_power_of_two, plan_attend, segment_shape
from wq_kernels.layout import Block, Segment, words_per_token
from wq_kernels.ops.attend.planes import code_planes, load_scales, load_words, position, rows_of, slice_channel

LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = 1.4426950408889634
# Every set of widths is a kernel of its own, which takes seconds to compile: these always come together.
USUAL_WIDTHS = ((4, 4), (2, 2))
# Of a subnormal float16 to its mantissa.
CODE_UNIT = tl.constexpr(16777216.0)


@triton.jit
def power_of_two_above(x):
    """The smallest power of two that exceeds float32 x >= 0 (1 for 0), at most 2**127."""
    exponent = tl.minimum((x.to(tl.int32, bitcast=True) >> 23) + 1, 254)
    return tl.where(x > 0, (exponent << 23).to(tl.float32, bitcast=True), 1.0)


@triton.jit
def load_queries(p_q, m_row, D: tl.constexpr, BLOCK_C: tl.constexpr):
    """Queries [C, M] for each part of the channels, and the largest magnitude of each column [M]."""
    parts = ()
    b_top = tl.zeros([m_row.shape[0]], dtype=tl.float32)
    for part in tl.static_range(D // BLOCK_C):
        channel = part * BLOCK_C + tl.arange(0, BLOCK_C)
        b_q = tl.load(p_q[None, :] + channel[:, None], mask=m_row[None, :], other=0.0)
        b_top = tl.maximum(b_top, tl.max(tl.abs(b_q.to(tl.float32)), axis=0))
        parts = parts + (b_q,)
    return parts, b_top


@triton.jit
def load_query_slices(p_q, m_row, b_unit, D: tl.constexpr, BITS: tl.constexpr, DTYPE: tl.constexpr):
    """Queries over `b_unit` and the units of the planes, [16, M] for every block and plane.

    They pass through a product with the identity: its result is laid out as scales are cheapest to put on.
    """
    PLANES: tl.constexpr = 16 // BITS
    WORDS: tl.constexpr = D // PLANES
    row = tl.arange(0, 16)
    identity = tl.where(row[:, None] == row[None, :], 1.0, 0.0).to(DTYPE)
    slices = ()
    for block in tl.static_range((WORDS + 15) // 16):
        for plane in tl.static_range(PLANES):
            channel, present = slice_channel(plane, block, WORDS)
            mask = present[:, None] & m_row[None, :]
            b_q = tl.load(p_q[None, :] + channel[:, None], mask=mask, other=0.0).to(tl.float32)
            b_q = (b_q / b_unit[None, :] * 0.5 ** position(plane, BITS)).to(DTYPE)
            slices = slices + (tl.dot(identity, b_q, input_precision="ieee").to(DTYPE),)
    return slices


@triton.jit
def store_biases(parts, b_unit, minimum, scratch, first, stop, scaling, PARTS: tl.constexpr,
                 D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    """Scores of the minima of tiles [first, stop), to scratch [tiles, M]."""
    column = tl.arange(0, BLOCK_M)
    for start in tl.range(first, stop, 16, num_stages=2):
        tile = start + tl.arange(0, 16)
        b_bias = tl.zeros([16, BLOCK_M], dtype=tl.float32)
        for part in tl.static_range(D // BLOCK_C):
            channel = part * BLOCK_C + tl.arange(0, BLOCK_C)
            p_minimum = minimum + (tile // PARTS)[:, None] * D + channel[None, :]
            b_minimum = tl.load(p_minimum, mask=(tile < stop)[:, None], other=0.0).to(DTYPE)
            b_q = (parts[part].to(tl.float32) / b_unit[None, :]).to(DTYPE)
            b_bias = tl.dot(b_minimum, b_q, b_bias, input_precision="ieee")
        p_scratch = scratch + tile[:, None] * BLOCK_M + column[None, :]
        tl.store(p_scratch, b_bias * (b_unit * scaling)[None, :], mask=(tile < stop)[:, None])


@triton.jit
def add_minima(outputs, minimum, scratch, tops, first, stop, b_top, PARTS: tl.constexpr,
               D: tl.constexpr, BITS: tl.constexpr, BLOCK_M: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    """Output of every block and plane plus minima times the sums of weights of tiles [first, stop)."""
    PLANES: tl.constexpr = 16 // BITS
    WORDS: tl.constexpr = D // PLANES
    column = tl.arange(0, BLOCK_M)
    for start in tl.range(first, stop, 16, num_stages=1):
        tile = start + tl.arange(0, 16)
        p_sum = scratch + tile[:, None] * BLOCK_M + column[None, :]
        b_sum = tl.load(p_sum, mask=(tile < stop)[:, None], other=0.0)
        b_then = tl.load(p_sum + tops, mask=(tile < stop)[:, None], other=float("-inf"))
        b_weight = (b_sum * tl.exp2(b_then - b_top[None, :])).to(DTYPE)
        new_outputs = ()
        for block in tl.static_range((WORDS + 15) // 16):
            for plane in tl.static_range(PLANES):
                channel, present = slice_channel(plane, block, WORDS)
                p_minimum = minimum + (tile // PARTS)[None, :] * D + channel[:, None]
                mask = present[:, None] & (tile < stop)[None, :]
                b_minimum = tl.load(p_minimum, mask=mask, other=0.0).to(DTYPE)
                b_output = outputs[block * PLANES + plane]
                new_outputs = new_outputs + (tl.dot(b_minimum, b_weight, b_output, input_precision="ieee"),)
        outputs = new_outputs
    return outputs


@triton.jit
def packed_scores(slices, words, scales, TILE: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr,
                  BLOCK_M: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr):  # fmt: skip
    """(q * s) . c in code units, [16, M] for every 16 tokens of a tile."""
    PLANES: tl.constexpr = 16 // BITS
    BLOCKS: tl.constexpr = (D // PLANES + 15) // 16
    queries = ()
    for i in tl.static_range(BLOCKS * PLANES):
        queries = queries + (slices[i] * rows_of(scales[i]).to(DTYPE)[:, None],)
    scores = ()
    for t in tl.static_range(TILE // 16):
        b_score = tl.zeros([16, BLOCK_M], dtype=tl.float32)
        for block in tl.static_range(BLOCKS):
            planes = code_planes(words[t * BLOCKS + block], BITS, DTYPE, USE_ASSEMBLY)
            for plane in tl.static_range(PLANES):
                b_score = tl.dot(planes[plane], queries[block * PLANES + plane], b_score, input_precision="ieee")
        scores = scores + (b_score,)
    return scores


@triton.jit
def packed_outputs(outputs, b_decay, weights, words, scales, TILE: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr,
                   BLOCK_M: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr):  # fmt: skip
    """Output of every block and plane in code units, decayed, plus s * sum_t p_t c_t."""
    PLANES: tl.constexpr = 16 // BITS
    BLOCKS: tl.constexpr = (D // PLANES + 15) // 16
    sums = ()
    for _ in tl.static_range(BLOCKS * PLANES):
        sums = sums + (tl.zeros([16, BLOCK_M], dtype=tl.float32),)
    for t in tl.static_range(TILE // 16):
        new_sums = ()
        for block in tl.static_range(BLOCKS):
            planes = code_planes(words[t * BLOCKS + block], BITS, DTYPE, USE_ASSEMBLY)
            for plane in tl.static_range(PLANES):
                b_sum = sums[block * PLANES + plane]
                new_sums = new_sums + (tl.dot(planes[plane], weights[t], b_sum, input_precision="ieee"),)
        sums = new_sums
    new_outputs = ()
    for i in tl.static_range(BLOCKS * PLANES):
        b_scale = rows_of(scales[i]).to(tl.float32)
        new_outputs = new_outputs + (outputs[i] * b_decay[None, :] + sums[i] * b_scale[:, None],)
    return new_outputs


@triton.jit
def load_raw(values, stride, token, mask, D: tl.constexpr, BLOCK_C: tl.constexpr, CHANNELS_FIRST: tl.constexpr):
    """Values of tokens for each part of the channels, [tokens, C] or its transpose."""
    parts = ()
    for part in tl.static_range(D // BLOCK_C):
        channel = part * BLOCK_C + tl.arange(0, BLOCK_C)
        if CHANNELS_FIRST:
            place = values + (token * stride)[None, :] + channel[:, None]
            parts = parts + (tl.load(place, mask=mask[None, :], other=0.0),)
        else:
            place = values + (token * stride)[:, None] + channel[None, :]
            parts = parts + (tl.load(place, mask=mask[:, None], other=0.0),)
    return parts


@triton.jit
def raw_scores(parts, keys, BLOCK_T: tl.constexpr, BLOCK_M: tl.constexpr):
    """q . k, [tokens, M]."""
    b_score = tl.zeros([BLOCK_T, BLOCK_M], dtype=tl.float32)
    for part in tl.static_range(len(parts)):
        b_score = tl.dot(keys[part].to(parts[part].dtype), parts[part], b_score, input_precision="ieee")
    return b_score


@triton.jit
def raw_outputs(outputs, b_decay, b_weight, values):
    """Output [C, M] of each part of the channels, decayed, plus sum_t p_t v_t."""
    new_outputs = ()
    for part in tl.static_range(len(values)):
        b_output = outputs[part] * b_decay[None, :]
        b_v = values[part]
        new_outputs = new_outputs + (tl.dot(b_v, b_weight.to(b_v.dtype), b_output, input_precision="ieee"),)
    return new_outputs


@triton.jit
def new_maximum(b_top, b_highest):
    """The running maximum [M] with another one, what scores are measured from, and the decay of what was summed."""
    b_new_top = tl.maximum(b_top, b_highest)
    # While nothing is seen, 0 takes the place of -inf, whose difference to itself is no number.
    b_base = tl.where(b_new_top == float("-inf"), 0.0, b_new_top)
    return b_new_top, b_base, tl.exp2(b_top - b_base)


@triton.jit
def zero_outputs(COUNT: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr):
    outputs = ()
    for _ in tl.static_range(COUNT):
        outputs = outputs + (tl.zeros([ROWS, BLOCK_M], dtype=tl.float32),)
    return outputs


@triton.jit
def attend_windows(
    p_q, m_row, key, value, scratch, tops, first, stop, scaling,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr,
    D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, STAGES: tl.constexpr,
    DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Attention over tiles [first, stop) of a head's windows.

    Args:
        key: (data, pairs of scales, minimum) of the head, as `value`.
        scratch: float32 [tiles, M] of this head and block of query rows, one copy `tops` further on.
        scaling: Of the scores, in base 2.

    Returns:
        Output as sums of weights times values, maximum [M], and total of the weights [M]. Output: [16, M] for every
        block and plane of packed values, [C, M] for each part of the channels of raw ones.
    """
    PARTS: tl.constexpr = (WINDOW + TILE - 1) // TILE
    parts, b_largest = load_queries(p_q, m_row, D, BLOCK_C)
    b_unit = power_of_two_above(b_largest)
    if KEY_BITS != 16:
        store_biases(parts, b_unit, key[2], scratch, first, stop, scaling, PARTS, D, BLOCK_C, BLOCK_M, DTYPE)
        slices = load_query_slices(p_q, m_row, b_unit, D, KEY_BITS, DTYPE)
        key_scales = load_scales(key[1], first // PARTS, D, KEY_BITS)
        tl.debug_barrier()
    if VALUE_BITS != 16:
        value_scales = load_scales(value[1], first // PARTS, D, VALUE_BITS)
        VALUE_PLANES: tl.constexpr = 16 // VALUE_BITS
        VALUE_WORDS: tl.constexpr = D // VALUE_PLANES
        outputs = zero_outputs((VALUE_WORDS + 15) // 16 * VALUE_PLANES, 16, BLOCK_M)
    else:
        outputs = zero_outputs(D // BLOCK_C, BLOCK_C, BLOCK_M)
    column = tl.arange(0, BLOCK_M)
    b_top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    totals = tl.zeros([16, BLOCK_M], dtype=tl.float32)
    ones = tl.full([16, 16], 1.0, dtype=DTYPE)
    # Plain values fill a stage of their own with every tile: a second one would cost programs that run at once.
    for tile in tl.range(first, stop, num_stages=2 if KEY_BITS == 16 or VALUE_BITS == 16 else STAGES):
        following = tl.minimum(tile + 1, stop - 1) // PARTS
        inner = tile % PARTS * TILE + tl.arange(0, 16)
        token = tile // PARTS * WINDOW + inner
        scores = ()
        if KEY_BITS != 16:
            words = load_words(key[0], tile, stop - 1, WINDOW, TILE, D * KEY_BITS // 16, False)
            b_bias = tl.load(scratch + tile * BLOCK_M + column)
            next_scales = load_scales(key[1], following, D, KEY_BITS)
            b_factor = CODE_UNIT * b_unit * scaling
            products = packed_scores(slices, words, key_scales, TILE, D, KEY_BITS, BLOCK_M, DTYPE, USE_ASSEMBLY)
            for t in tl.static_range(TILE // 16):
                scores = scores + (products[t] * b_factor[None, :] + b_bias[None, :],)
            key_scales = next_scales
        else:
            for t in tl.static_range(TILE // 16):
                keys = load_raw(key[0], D, token + t * 16, inner + t * 16 < WINDOW, D, BLOCK_C, False)
                scores = scores + (raw_scores(parts, keys, 16, BLOCK_M) * scaling,)
        if WINDOW % TILE != 0:
            seen = ()
            for t in tl.static_range(TILE // 16):
                seen = seen + (tl.where((inner + t * 16 < WINDOW)[:, None], scores[t], float("-inf")),)
            scores = seen
        b_highest = scores[0]
        for t in tl.static_range(1, TILE // 16):
            b_highest = tl.maximum(b_highest, scores[t])
        b_top, b_base, b_decay = new_maximum(b_top, tl.max(b_highest, axis=0))
        b_sum = tl.zeros([16, BLOCK_M], dtype=tl.float32)
        weights = ()
        for t in tl.static_range(TILE // 16):
            weights = weights + (tl.exp2(scores[t] - b_base[None, :]).to(DTYPE),)
            b_sum = tl.dot(ones, weights[t], b_sum, input_precision="ieee")
        totals = totals * b_decay[None, :] + b_sum
        if VALUE_BITS != 16:
            # All 16 rows of the sum are equal; one is kept.
            p_sum = scratch + tile * BLOCK_M + column[None, :] + tl.zeros([16, BLOCK_M], dtype=tl.int32)
            first_row = (tl.arange(0, 16) == 0)[:, None]
            tl.store(p_sum, b_sum, mask=first_row)
            tl.store(p_sum + tops, b_base[None, :] + tl.zeros([16, BLOCK_M], dtype=tl.float32), mask=first_row)
            words = load_words(value[0], tile, stop - 1, WINDOW, TILE, D * VALUE_BITS // 16, True)
            next_scales = load_scales(value[1], following, D, VALUE_BITS)
            outputs = packed_outputs(
                outputs, b_decay, weights, words, value_scales, TILE, D, VALUE_BITS, BLOCK_M, DTYPE, USE_ASSEMBLY
            )
            value_scales = next_scales
        else:
            for t in tl.static_range(TILE // 16):
                values = load_raw(value[0], D, token + t * 16, inner + t * 16 < WINDOW, D, BLOCK_C, True)
                decay = b_decay if t == 0 else tl.full([BLOCK_M], 1.0, dtype=tl.float32)
                outputs = raw_outputs(outputs, decay, weights[t], values)
    if VALUE_BITS != 16:
        whole = ()
        for i in tl.static_range(len(outputs)):
            whole = whole + (outputs[i] * (CODE_UNIT * 0.5 ** position(i % (16 // VALUE_BITS), VALUE_BITS)),)
        tl.debug_barrier()
        outputs = add_minima(whole, value[2], scratch, tops, first, stop, b_top, PARTS, D, VALUE_BITS, BLOCK_M, DTYPE)
    return outputs, b_top, tl.max(totals, axis=0)


@triton.jit
def attend_run(
    p_q, m_row, key, value, key_stride, value_stride, p_mask, first, stop, last_seen, scaling,
    D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr, USE_MASK: tl.constexpr,
):  # fmt: skip
    """Attention over tokens [first, stop) of the raw run; see `attend_windows`.

    Args:
        last_seen: Last token that a query may see, [M].
        p_mask: bool per token, False for never; used when USE_MASK.
    """
    parts, _ = load_queries(p_q, m_row, D, BLOCK_C)
    outputs = zero_outputs(D // BLOCK_C, BLOCK_C, BLOCK_M)
    b_top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([BLOCK_M], dtype=tl.float32)
    for start in tl.range(first, stop, BLOCK_T, num_stages=2):
        token = (start + tl.arange(0, BLOCK_T)).to(tl.int64)
        inside = token < stop
        keys = load_raw(key, key_stride, token, inside, D, BLOCK_C, False)
        values = load_raw(value, value_stride, token, inside, D, BLOCK_C, True)
        visible = inside[:, None] & (token[:, None] <= last_seen[None, :])
        if USE_MASK:
            visible = visible & tl.load(p_mask + token, mask=inside, other=False)[:, None]
        b_score = tl.where(visible, raw_scores(parts, keys, BLOCK_T, BLOCK_M) * scaling, float("-inf"))
        b_top, b_base, b_decay = new_maximum(b_top, tl.max(b_score, axis=0))
        b_weight = tl.exp2(b_score - b_base[None, :])
        b_total = b_total * b_decay + tl.sum(b_weight, axis=0)
        outputs = raw_outputs(outputs, b_decay, b_weight, values)
    return outputs, b_top, b_total


@triton.jit
def store_partial(
    outputs, b_top, b_total, output, lse, row, m_row, slot, partials,
    BITS: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Normalise and store: output to [rows, partials, D], log2-sum-exp2 [M] to [rows, partials]."""
    PLANES: tl.constexpr = 16 // BITS
    place = row.to(tl.int64) * partials + slot
    b_total = tl.where(b_total > 0, b_total, 1.0)
    tl.store(lse + place, b_top + tl.log2(b_total), mask=m_row)
    for i in tl.static_range(len(outputs)):
        if BITS == 16:
            channel = i * BLOCK_C + tl.arange(0, BLOCK_C)
            mask = m_row[None, :] & (channel >= 0)[:, None]
        else:
            channel, present = slice_channel(i % PLANES, i // PLANES, D // PLANES)
            mask = m_row[None, :] & present[:, None]
        tl.store(output + place[None, :] * D + channel[:, None], outputs[i] / b_total[None, :], mask=mask)


@triton.jit
def head_block(block, windows, BITS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr):
    """Pointers of a block moved past `windows` windows, to where a head begins."""
    return (block[0] + windows * (WINDOW * D * BITS // 16), block[1] + windows * (D // 2), block[2] + windows * D)


@triton.jit
def units_of_program(program, budget, units, cost, start):
    """Units [first, stop) of a stretch that start in the time of a program (launch.py, `AttendPlan`)."""
    first = tl.maximum(program * budget - start + cost - 1, 0) // cost
    stop = tl.maximum((program + 1) * budget - start + cost - 1, 0) // cost
    return tl.minimum(first, units).to(tl.int32), tl.minimum(stop, units).to(tl.int32)


@triton.jit(do_not_specialize=["raw_length", "tops", "tiles", "partials"])
def attend_kernel(
    query, output, lse, scratch, tops, tiles, partials, budget, keys, values, extents,
    raw_key, raw_value, raw_mask, raw_length, raw_extent,
    stride_qb, stride_qh, stride_qq, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_mb,
    scaling, heads, group, queries,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, WINDOWS: tl.constexpr, TILES: tl.constexpr,
    RAW_TILE: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, STAGES: tl.constexpr,
    LENGTH_ON_DEVICE: tl.constexpr, USE_MASK: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Partial attention of each stretch in a program's share: softmax(q k^T) v over its tokens, and the log-sum-exp.

    Grid: programs x blocks of query rows x B * Hkv.

    Args:
        output: float32 [B, Hkv, G * Q, partials, D].
        lse: float32 [B, Hkv, G * Q, partials], base 2.
        scratch: float32 [2, B * Hkv, blocks, tiles, M], the two `tops` apart.
        budget: Time of a program, as `opaque` makes it.
        keys: Per segment (data, pairs of scales, minimum).
        values: As keys.
        extents: Per segment (units, cost, start, slots, first tile) of its stretch, each as `opaque` makes it.
        raw_length: Tokens of the run, or where they are written when LENGTH_ON_DEVICE.
        raw_extent: As of a segment.
        scaling: Of the scores, times log2(e).
        KEY_BITS: Per segment, as are VALUE_BITS, WINDOWS (tokens per window) and TILES (tokens of a tile). All are
            constexpr because they shape the code.
        DTYPE: Of codes in a product.
    """
    program, i_block, i_head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    share = budget // 16
    rows = group * queries
    batch, head = i_head // heads, i_head % heads
    row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    m_row = row < rows
    p_q = query + batch * stride_qb + (head * group + row // queries) * stride_qh + row % queries * stride_qq
    output += i_head * rows * partials * D
    lse += i_head * rows * partials
    scratch += (i_head * tl.num_programs(1) + i_block) * tiles * BLOCK_M
    for i in tl.static_range(len(KEY_BITS)):
        units, start = extents[i][0] // 16, extents[i][2] // 16
        first, stop = units_of_program(program, share, units, extents[i][1] // 16, start)
        if first < stop:
            before = i_head * (units // ((WINDOWS[i] + TILES[i] - 1) // TILES[i]))
            outputs, b_top, b_total = attend_windows(
                p_q, m_row,
                head_block(keys[i], before, KEY_BITS[i], WINDOWS[i], D),
                head_block(values[i], before, VALUE_BITS[i], WINDOWS[i], D),
                scratch + extents[i][4] // 16 * BLOCK_M, tops, first, stop, scaling,
                KEY_BITS[i], VALUE_BITS[i], WINDOWS[i], TILES[i], D, BLOCK_C, BLOCK_M, STAGES, DTYPE, USE_ASSEMBLY,
            )  # fmt: skip
            slot = program + extents[i][3] // 16
            store_partial(outputs, b_top, b_total, output, lse, row, m_row, slot, partials, VALUE_BITS[i], D, BLOCK_C)
    start = raw_extent[2] // 16
    first, stop = units_of_program(program, share, raw_extent[0] // 16, raw_extent[1] // 16, start)
    if first < stop:
        length = raw_length
        if LENGTH_ON_DEVICE:
            length = tl.load(raw_length)
        outputs, b_top, b_total = attend_run(
            p_q, m_row,
            raw_key + batch * stride_kb + head * stride_kh, raw_value + batch * stride_vb + head * stride_vh,
            stride_kn, stride_vn, raw_mask + batch * stride_mb, first * RAW_TILE, tl.minimum(stop * RAW_TILE, length),
            length - queries + row % queries, scaling, D, BLOCK_C, BLOCK_M, RAW_TILE, USE_MASK,
        )  # fmt: skip
        slot = program + raw_extent[3] // 16
        store_partial(outputs, b_top, b_total, output, lse, row, m_row, slot, partials, 16, D, BLOCK_C)


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    partial, lse, output, splits, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr
):  # fmt: skip
    """Join the partial outputs of one query row: sum_s exp2(lse_s - max) o_s / sum_s exp2(lse_s - max).

    Grid: query rows x blocks of channels.

    Args:
        partial: float32 [rows, splits, D].
        lse: float32 [rows, splits], base 2.
        output: [rows, D].
    """
    i_row = tl.program_id(0).to(tl.int64)
    o_channel = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    b_output = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_top = float("-inf")
    b_total = 0.0
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        b_lse = tl.load(lse + i_row * splits + split, mask=split < splits, other=float("-inf"))
        p_partial = partial + (i_row * splits + split)[:, None] * D + o_channel[None, :]
        b_partial = tl.load(p_partial, mask=(split < splits)[:, None] & (o_channel < D)[None, :], other=0.0)
        new_top = tl.maximum(b_top, tl.max(b_lse, axis=0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        b_weight = tl.exp2(b_lse - base)
        decay = tl.exp2(b_top - base)
        b_output = b_output * decay + tl.sum(b_partial * b_weight[:, None], axis=0)
        b_total = b_total * decay + tl.sum(b_weight, axis=0)
        b_top = new_top
    b_output = b_output / tl.where(b_total > 0, b_total, 1.0)
    tl.store(output + i_row * D + o_channel, b_output, mask=o_channel < D)


def opaque(n: int) -> int:
    """The number in a form that Triton compiles no special version for (it does for 1 and for multiples of 16)."""
    return 16 * n + 8


def with_usual_widths(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Segments of some of the usual widths, with empty ones for the others."""
    found = {(segment.key.bits, segment.value.bits): segment for segment in segments}
    same_window = len({segment.key.window for segment in segments}) == 1
    if len(found) < len(segments) or not found.keys() <= set(USUAL_WIDTHS) or not same_window:
        return segments
    return [found[widths] if widths in found else empty_like(segments[0], *widths) for widths in USUAL_WIDTHS]


def empty_like(segment: Segment, *widths: int) -> Segment:
    """A segment of no windows."""
    scale = segment.key.scale
    assert scale is not None
    none = scale[:, :, :0].contiguous()
    window, channels = segment.key.window, segment.key.channels
    words = [words_per_token(channels, bits) for bits in widths]
    blocks = [
        Block(bits, window, channels, none.new_empty(*none.shape[:3], count, dtype=torch.int16), none, none)
        for bits, count in zip(widths, words, strict=True)
    ]
    return Segment(*blocks)


def extent(stretch: Stretch) -> tuple[int, ...]:
    """What a kernel needs to know of a stretch."""
    return tuple(opaque(n) for n in (stretch.units, stretch.cost, stretch.start, stretch.slots, stretch.first_tile))


def attend(
    query: Tensor,
    segments: Sequence[Segment],
    raw_key: Tensor,
    raw_value: Tensor,
    raw_length: int | Tensor,
    *,
    scaling: float,
    raw_mask: Tensor | None,
    tile: AttendTile | None = None,
) -> Tensor:
    """See `wq_kernels.attend`; `tile` replaces the choice of launch.py."""
    batch, query_heads, queries, channels = query.shape
    heads = raw_key.shape[1]
    group = query_heads // heads
    segments = with_usual_widths(segments)
    shapes = tuple(segment_shape(segment) for segment in segments)
    gpu = card(query.device)
    tile = tile or choose_tile(group * queries, channels, shapes, gpu)
    # A length on the device is not known here: what the run has room for is.
    capacity = raw_length if isinstance(raw_length, int) else raw_key.shape[2]
    plan = plan_attend(group * queries, batch * heads, shapes, capacity, tile, gpu)
    if plan.partials == 0:
        return torch.zeros_like(query)
    rows, blocks = group * queries, -(-group * queries // tile.query_block)
    partial = query.new_empty(batch * heads * rows, plan.partials, channels, dtype=torch.float32)
    lse = query.new_empty(batch * heads * rows, plan.partials, dtype=torch.float32)
    scratch = query.new_empty(2, batch * heads * blocks * plan.tiles * tile.query_block, dtype=torch.float32)
    output = query.new_empty(query.shape)
    float32 = query.dtype == torch.float32
    attend_kernel[(plan.programs, blocks, batch * heads)](
        query, partial, lse, scratch, scratch.shape[1], plan.tiles, plan.partials, opaque(plan.budget),
        tuple(pointers(segment.key) for segment in segments),
        tuple(pointers(segment.value) for segment in segments),
        tuple(extent(stretch) for stretch in plan.segments),
        raw_key, raw_value, raw_key if raw_mask is None else raw_mask, raw_length, extent(plan.raw),
        *query.stride()[:3], *raw_key.stride()[:3], *raw_value.stride()[:3],
        0 if raw_mask is None else raw_mask.stride(0),
        scaling * LOG2_E, heads, group, queries,
        KEY_BITS=tuple(shape.key_bits for shape in shapes),
        VALUE_BITS=tuple(shape.value_bits for shape in shapes),
        WINDOWS=tuple(shape.window for shape in shapes),
        TILES=tuple(shape.tile_tokens for shape in shapes),
        RAW_TILE=tile.raw_tokens,
        D=channels,
        BLOCK_C=min(128, channels & -channels),
        BLOCK_M=tile.query_block,
        STAGES=tile.stages,
        LENGTH_ON_DEVICE=not isinstance(raw_length, int),
        USE_MASK=raw_mask is not None,
        DTYPE=tl.float32 if float32 else tl.float16,
        USE_ASSEMBLY=not float32 and not isinstance(attend_kernel, InterpretedFunction),
        num_warps=1,
        maxnreg=tile.registers,
    )  # fmt: skip
    block_channels = 32 if channels % 32 == 0 else next_power_of_two(channels)
    merge_kernel[(batch * query_heads * queries, -(-channels // block_channels))](
        partial, lse, output, plan.partials, D=channels, BLOCK_D=block_channels,
        BLOCK_S=min(128, max(16, next_power_of_two(plan.partials))), num_warps=4,
    )  # fmt: skip
    return output


def pointers(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors of a block; a raw one has no scale and no minimum, and its data stands in for them."""
    if block.scale is None or block.minimum is None:
        return block.data, block.data, block.data
    return block.data, block.scale.view(torch.int32), block.minimum
