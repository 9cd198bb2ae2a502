"""Attention over the windows of a segment, whose keys and values are packed or plain.

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

import triton
import triton.language as tl

from wq_kernels.ops.attend.planes import (
    CODE_UNIT,
    FIRST_PREFETCH,
    code_planes,
    code_unit,
    load_scales,
    load_words,
    plane_channels,
    position,
    power_of_two_above,
    prefetch_windows,
)
from wq_kernels.ops.attend.run import load_queries, load_raw, new_maximum, raw_outputs, raw_scores, zero_outputs


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
            channel, present = plane_channels(plane, block, WORDS, PLANES)
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
def in_order(outputs, PLANES: tl.constexpr, BLOCK_M: tl.constexpr):
    """Outputs of the planes of every block, [16, M], as one [16 * PLANES, M] a block with its channels in order."""
    parts = ()
    for block in tl.static_range(len(outputs) // PLANES):
        joined = ()
        for plane in tl.static_range(PLANES):
            joined = joined + (outputs[block * PLANES + plane],)
        for _ in tl.static_range(PLANES.bit_length() - 1):
            pairs = ()
            for i in tl.static_range(len(joined) // 2):
                pairs = pairs + (tl.join(joined[i], joined[i + len(joined) // 2]),)
            joined = pairs
        b_output = tl.permute(tl.reshape(joined[0], [16, BLOCK_M, PLANES]), [0, 2, 1])
        parts = parts + (tl.reshape(b_output, [16 * PLANES, BLOCK_M]),)
    return parts


@triton.jit
def add_minima(parts, minimum, scratch, tops, first, stop, b_top, PARTS: tl.constexpr,
               D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, DTYPE: tl.constexpr):  # fmt: skip
    """Output [C, M] of each part of the channels plus minima times the sums of weights of tiles [first, stop)."""
    column = tl.arange(0, BLOCK_M)
    for start in tl.range(first, stop, 16, num_stages=2):
        tile = start + tl.arange(0, 16)
        p_sum = scratch + tile[:, None] * BLOCK_M + column[None, :]
        b_sum = tl.load(p_sum, mask=(tile < stop)[:, None], other=0.0)
        b_then = tl.load(p_sum + tops, mask=(tile < stop)[:, None], other=float("-inf"))
        b_weight = b_sum * tl.exp2(b_then - b_top[None, :])
        # As a sum of two float16: one alone would shift outputs by more than all other roundings.
        b_first = b_weight.to(DTYPE)
        b_rest = (b_weight - b_first.to(tl.float32)).to(DTYPE)
        p_window = minimum + (tl.minimum(tile, stop - 1) // PARTS)[None, :] * D
        new_parts = ()
        for part in tl.static_range(len(parts)):
            channel = part * BLOCK_C + tl.arange(0, BLOCK_C)
            b_minimum = tl.load(p_window + channel[:, None], mask=(channel < D)[:, None], other=0.0)
            b_output = tl.dot(b_minimum.to(DTYPE), b_first, parts[part], input_precision="ieee")
            b_output = tl.dot(b_minimum.to(DTYPE), b_rest, b_output, input_precision="ieee")
            new_parts = new_parts + (b_output,)
        parts = new_parts
    return parts


@triton.jit
def scaled_queries(slices, scales, DTYPE: tl.constexpr):
    """q * s, [16, M] for every block and plane."""
    queries = ()
    for i in tl.static_range(len(slices)):
        queries = queries + (slices[i] * scales[i].to(DTYPE)[:, None],)
    return queries


@triton.jit
def packed_scores(queries, words, TILE: tl.constexpr, D: tl.constexpr, BITS: tl.constexpr,
                  BLOCK_M: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr):  # fmt: skip
    """(q * s) . c in code units, [16, M] for every 16 tokens of a tile."""
    PLANES: tl.constexpr = 16 // BITS
    BLOCKS: tl.constexpr = (D // PLANES + 15) // 16
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
        b_scale = scales[i].to(tl.float32)
        new_outputs = new_outputs + (outputs[i] * b_decay[None, :] + sums[i] * b_scale[:, None],)
    return new_outputs


@triton.jit
def attend_windows(
    p_q, m_row, key, value, scratch, tops, first, stop, scaling,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, WINDOW: tl.constexpr, TILE: tl.constexpr,
    D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, STAGES: tl.constexpr,
    DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr, PREFETCH: tl.constexpr,
):  # fmt: skip
    """Attention over tiles [first, stop) of a head's windows.

    Args:
        key: (data, scale, minimum) of the head, as `value`.
        scratch: float32 [tiles, M] of this head and block of query rows, one copy `tops` further on.
        scaling: Of the scores, in base 2.

    Returns:
        Output as sums of weights times values, [C, M] for each part of the channels, maximum [M], and total of the
        weights [M].
    """
    PARTS: tl.constexpr = (WINDOW + TILE - 1) // TILE
    if PREFETCH:
        window = first // PARTS
        count = tl.minimum((stop + PARTS - 1) // PARTS - window, FIRST_PREFETCH)
        prefetch_windows(key, window, count, KEY_BITS, WINDOW, D)
        prefetch_windows(value, window, count, VALUE_BITS, WINDOW, D)
    parts, b_largest = load_queries(p_q, m_row, D, BLOCK_C)
    b_unit = power_of_two_above(b_largest)
    if KEY_BITS != 16:
        store_biases(parts, b_unit, key[2], scratch, first, stop, scaling, PARTS, D, BLOCK_C, BLOCK_M, DTYPE)
        slices = load_query_slices(p_q, m_row, b_unit, D, KEY_BITS, DTYPE)
        key_scales = load_scales(key[1], first // PARTS, D, KEY_BITS, USE_ASSEMBLY)
        tl.debug_barrier()
    if VALUE_BITS != 16:
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
        if VALUE_BITS != 16:
            value_scales = load_scales(value[1], tile // PARTS, D, VALUE_BITS, USE_ASSEMBLY)
        scores = ()
        if KEY_BITS != 16:
            queries = scaled_queries(slices, key_scales, DTYPE)
            key_scales = load_scales(key[1], following, D, KEY_BITS, USE_ASSEMBLY)
            words = load_words(key[0], tile, stop - 1, WINDOW, TILE, D * KEY_BITS // 16, False)
            b_bias = tl.load(scratch + tile * BLOCK_M + column)
            b_factor = CODE_UNIT * b_unit * scaling
            products = packed_scores(queries, words, TILE, D, KEY_BITS, BLOCK_M, DTYPE, USE_ASSEMBLY)
            for t in tl.static_range(TILE // 16):
                scores = scores + (products[t] * b_factor[None, :] + b_bias[None, :],)
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
            outputs = packed_outputs(
                outputs, b_decay, weights, words, value_scales, TILE, D, VALUE_BITS, BLOCK_M, DTYPE, USE_ASSEMBLY
            )
        else:
            for t in tl.static_range(TILE // 16):
                values = load_raw(value[0], D, token + t * 16, inner + t * 16 < WINDOW, D, BLOCK_C, True)
                decay = b_decay if t == 0 else tl.full([BLOCK_M], 1.0, dtype=tl.float32)
                outputs = raw_outputs(outputs, decay, weights[t], values)
    if VALUE_BITS != 16:
        whole = ()
        for i in tl.static_range(len(outputs)):
            whole = whole + (outputs[i] * code_unit(i % VALUE_PLANES, VALUE_BITS),)
        tl.debug_barrier()
        outputs = in_order(whole, VALUE_PLANES, BLOCK_M)
        outputs = add_minima(
            outputs, value[2], scratch, tops, first, stop, b_top, PARTS, D, 16 * VALUE_PLANES, BLOCK_M, DTYPE
        )
    return outputs, b_top, tl.max(totals, axis=0)
