"""Attention over packed segments in Triton: split-KV flash decoding, all widths in one launch, then one merge.

A program takes one stretch of one segment and a block of the query rows of one KV head. Keys are the left operand of
the score product, tokens as rows and query rows as columns, and values the left operand of the output product, channels
as rows: unpacked values stay in registers, and few query rows waste little of a tile. A tile is a number of rows of
words; token p of every row forms plane p, one product per plane, and the scores stay apart by plane through the softmax
because the order of tokens does not matter.

Products of packed values are in float16 (planes.py says why): keys and values of a bfloat16 model must stay below
65504 * 2**bits in magnitude, and queries are clamped to 65504.
"""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from wq_kernels.launch import AttendTile, card, choose_tile, next_power_of_two, plan_attend, segment_shape
from wq_kernels.layout import Block, Segment
from wq_kernels.ops.attend.planes import byte_planes, head_block, load_metadata, source_row

LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = 1.4426950408889634


@triton.jit
def add_key_scores(
    scores, b_q, block, stride, row, channel, mask,
    BITS: tl.constexpr, T: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """T planes of scores [ROWS, M] plus the products of some channels of the keys (over 2**BITS) and queries [C, M]."""
    new_scores = ()
    ROWS_PER_WINDOW: tl.constexpr = (WINDOW + T - 1) // T
    if BITS == 16:
        for p in tl.static_range(T):
            source, present = source_row(row, p, T, WINDOW, ROWS_PER_WINDOW)
            b_k = tl.load(block[0] + source * stride + channel, mask=mask & present, other=0.0).to(b_q.dtype)
            new_scores = new_scores + (tl.dot(b_k, b_q, scores[p], input_precision="ieee"),)
    else:
        WORDS: tl.constexpr = T * BITS // 32
        b_scale, b_minimum = load_metadata(block, row, channel, mask, BITS, ROWS_PER_WINDOW, D, DTYPE)
        for part in tl.static_range(WORDS):
            source, present = source_row(row, part, WORDS, (WINDOW * BITS + 31) // 32, ROWS_PER_WINDOW)
            b_words = tl.load(block[0] + source * stride + channel, mask=mask & present, other=0)
            for byte in tl.static_range(4):
                planes = byte_planes(b_words, b_scale, b_minimum, byte, BITS, USE_ASSEMBLY)
                for i in tl.static_range(8 // BITS):
                    b_score = scores[(part * 4 + byte) * (8 // BITS) + i]
                    new_scores = new_scores + (tl.dot(planes[i], b_q, b_score, input_precision="ieee"),)
    return new_scores


@triton.jit
def add_values(
    b_output, weights, block, stride, row, channel, mask,
    BITS: tl.constexpr, T: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Output [C, M] plus some channels of the values (over 2**BITS) times T planes of weights [ROWS, M]."""
    ROWS_PER_WINDOW: tl.constexpr = (WINDOW + T - 1) // T
    if BITS == 16:
        for p in tl.static_range(T):
            source, present = source_row(row, p, T, WINDOW, ROWS_PER_WINDOW)
            b_v = tl.load(block[0] + source * stride + channel, mask=mask & present, other=0.0)
            b_output = tl.dot(b_v, weights[p].to(b_v.dtype), b_output, input_precision="ieee")
    else:
        WORDS: tl.constexpr = T * BITS // 32
        b_scale, b_minimum = load_metadata(block, row, channel, mask, BITS, ROWS_PER_WINDOW, D, DTYPE)
        for part in tl.static_range(WORDS):
            source, present = source_row(row, part, WORDS, (WINDOW * BITS + 31) // 32, ROWS_PER_WINDOW)
            b_words = tl.load(block[0] + source * stride + channel, mask=mask & present, other=0)
            for byte in tl.static_range(4):
                planes = byte_planes(b_words, b_scale, b_minimum, byte, BITS, USE_ASSEMBLY)
                for i in tl.static_range(8 // BITS):
                    b_weight = weights[(part * 4 + byte) * (8 // BITS) + i].to(DTYPE)
                    b_output = tl.dot(planes[i], b_weight, b_output, input_precision="ieee")
    return b_output


@triton.jit
def softmax_step(scores, visible, row, b_top, b_total, scale, T: tl.constexpr, WINDOW: tl.constexpr):
    """Weights of T planes of products [ROWS, M] under the running maximum, which may rise.

    Returns:
        Weights, maximum [M], total of the weights so far [M], and the factor [M] that what was summed before needs.
    """
    masked = ()
    for p in tl.static_range(T):
        seen = visible
        if WINDOW % T != 0:
            seen = visible & (row % ((WINDOW + T - 1) // T) * T + p < WINDOW)[:, None]
        masked = masked + (tl.where(seen, scores[p] * scale, float("-inf")),)
    b_highest = masked[0]
    for p in tl.static_range(1, T):
        b_highest = tl.maximum(b_highest, masked[p])
    b_new_top = tl.maximum(b_top, tl.max(b_highest, axis=0))
    # While nothing is seen, 0 takes the place of -inf, whose difference to itself is no number.
    b_base = tl.where(b_new_top == float("-inf"), 0.0, b_new_top)
    b_decay = tl.exp2(b_top - b_base)
    weights = ()
    for p in tl.static_range(T):
        weights = weights + (tl.exp2(masked[p] - b_base[None, :]),)
    b_sum = weights[0]
    for p in tl.static_range(1, T):
        b_sum += weights[p]
    return weights, b_new_top, b_total * b_decay + tl.sum(b_sum, axis=0), b_decay


@triton.jit
def attend_stretch(
    queries, key, value, key_stride, value_stride, first, stop, last_seen, p_mask, scaling,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, T: tl.constexpr, WINDOW: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr,
    IS_RUN: tl.constexpr, USE_MASK: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Attention over tile rows [first, stop): output [C, M] of each part of the channels, log2-sum-exp2 [M].

    Args:
        queries: [C, M] for each part of the channels.
        last_seen: [M], last row that a query may see; used when IS_RUN.
        p_mask: bool per row, False for never; used when USE_MASK.
        scaling: Of the scores, in base 2.
    """
    b_top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([BLOCK_M], dtype=tl.float32)
    outputs = ()
    for _ in tl.static_range(len(queries)):
        outputs = outputs + (tl.zeros([BLOCK_C, BLOCK_M], dtype=tl.float32),)
    for start in range(first, stop, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        m_row = row < stop
        scores = ()
        for _ in tl.static_range(T):
            scores = scores + (tl.zeros([ROWS, BLOCK_M], dtype=tl.float32),)
        for part in tl.static_range(len(queries)):
            channel = part * BLOCK_C + tl.arange(0, BLOCK_C)
            mask = m_row[:, None]
            if D % BLOCK_C != 0:
                mask = mask & (channel < D)[None, :]
            scores = add_key_scores(
                scores, queries[part], key, key_stride, row[:, None], channel[None, :], mask,
                KEY_BITS, T, WINDOW, D, DTYPE, USE_ASSEMBLY,
            )  # fmt: skip
        visible = m_row[:, None]
        if IS_RUN:
            visible = visible & (row[:, None] <= last_seen[None, :])
        if USE_MASK:
            visible = visible & tl.load(p_mask + row, mask=m_row, other=False)[:, None]
        scale = scaling if KEY_BITS == 16 else scaling * 2**KEY_BITS
        weights, b_top, b_total, b_decay = softmax_step(scores, visible, row, b_top, b_total, scale, T, WINDOW)
        new_outputs = ()
        for part in tl.static_range(len(queries)):
            channel = part * BLOCK_C + tl.arange(0, BLOCK_C)
            mask = m_row[None, :]
            if D % BLOCK_C != 0:
                mask = mask & (channel < D)[:, None]
            b_output = add_values(
                outputs[part] * b_decay[None, :], weights, value, value_stride, row[None, :], channel[:, None], mask,
                VALUE_BITS, T, WINDOW, D, DTYPE, USE_ASSEMBLY,
            )  # fmt: skip
            new_outputs = new_outputs + (b_output,)
        outputs = new_outputs
    return outputs, b_top, b_total


@triton.jit
def store_partial(
    outputs, b_top, b_total, output, lse, row, rows, split, splits,
    BITS: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Normalise and store: output [C, M] by parts to [rows, splits, D], log-sum-exp [M] to [rows, splits]."""
    place = row.to(tl.int64) * splits + split
    b_total = tl.where(b_total > 0, b_total, 1.0)
    tl.store(lse + place, (b_top + tl.log2(b_total)) * LN_2, mask=row < rows)
    b_factor = 1 / b_total
    if BITS != 16:
        b_factor = b_factor * 2**BITS
    for part in tl.static_range(len(outputs)):
        channel = part * BLOCK_C + tl.arange(0, BLOCK_C)
        p_output = output + place[None, :] * D + channel[:, None]
        tl.store(p_output, outputs[part] * b_factor[None, :], mask=(row < rows)[None, :] & (channel < D)[:, None])


@triton.jit(do_not_specialize=["raw_length", "raw_rows_per_split"])
def attend_kernel(
    query, output, lse, keys, values, extents, raw_key, raw_value, raw_mask, raw_length, raw_rows_per_split,
    stride_qb, stride_qh, stride_qq, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_mb,
    scaling, heads, group, queries,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, WINDOWS: tl.constexpr, ROWS: tl.constexpr, T: tl.constexpr,
    RAW_ROWS: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr,
    USE_MASK: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Partial attention of one stretch: softmax(q k^T) v over its tokens, and the log-sum-exp of its scores.

    Grid: stretches (segment by segment, then the raw run) x blocks of query rows x B * Hkv.

    Args:
        output: float32 [B, Hkv, G * Q, splits, D].
        lse: float32 [B, Hkv, G * Q, splits].
        keys: Per segment (data, scale, minimum).
        values: As keys.
        extents: Per segment (rows, rows per split, first split), each as `opaque` makes it.
        scaling: Of the scores, times log2(e).
        KEY_BITS: Per segment, as are VALUE_BITS, WINDOWS (tokens per window), ROWS (of a tile) and T (tokens per row).
            All are constexpr because they shape the code.
        DTYPE: Of packed values in a product.
    """
    i_split, i_block, i_head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    splits = tl.num_programs(0)
    rows = group * queries
    batch, head = i_head // heads, i_head % heads
    row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    p_q = query + batch * stride_qb + (head * group + row // queries) * stride_qh + row % queries * stride_qq
    raw_parts = ()
    packed_parts = ()
    for part in tl.static_range((D + BLOCK_C - 1) // BLOCK_C):
        channel = part * BLOCK_C + tl.arange(0, BLOCK_C)
        mask = (row < rows)[None, :] & (channel < D)[:, None]
        b_q = tl.load(p_q[None, :] + channel[:, None], mask=mask, other=0.0)
        raw_parts = raw_parts + (b_q,)
        if b_q.dtype == tl.bfloat16:
            packed_parts = packed_parts + (tl.clamp(b_q.to(tl.float32), -65504.0, 65504.0).to(DTYPE),)
        else:
            packed_parts = packed_parts + (b_q.to(DTYPE),)
    last_seen = raw_length - queries + row % queries
    output += i_head * rows * splits * D
    lse += i_head * rows * splits
    for i in tl.static_range(len(KEY_BITS)):
        segment_rows, rows_per_split, first_split = extents[i][0] // 16, extents[i][1] // 16, extents[i][2] // 16
        first = (i_split - first_split) * rows_per_split
        if (first >= 0) & (first < segment_rows):
            windows = i_head * (segment_rows // ((WINDOWS[i] + T[i] - 1) // T[i]))
            outputs, b_top, b_total = attend_stretch(
                raw_parts if KEY_BITS[i] == 16 else packed_parts,
                head_block(keys[i], windows, KEY_BITS[i], WINDOWS[i], D),
                head_block(values[i], windows, VALUE_BITS[i], WINDOWS[i], D),
                D, D, first, tl.minimum(first + rows_per_split, segment_rows), last_seen, raw_mask, scaling,
                KEY_BITS[i], VALUE_BITS[i], T[i], WINDOWS[i], ROWS[i], D, BLOCK_C, BLOCK_M,
                False, False, DTYPE, USE_ASSEMBLY,
            )  # fmt: skip
            store_partial(outputs, b_top, b_total, output, lse, row, rows, i_split, splits, VALUE_BITS[i], D, BLOCK_C)
    raw_splits = (raw_length + raw_rows_per_split - 1) // raw_rows_per_split
    first = (i_split - (splits - raw_splits)) * raw_rows_per_split
    if first >= 0:
        outputs, b_top, b_total = attend_stretch(
            raw_parts,
            (raw_key + batch * stride_kb + head * stride_kh,),
            (raw_value + batch * stride_vb + head * stride_vh,),
            stride_kn, stride_vn, first, tl.minimum(first + raw_rows_per_split, raw_length),
            last_seen, raw_mask + batch * stride_mb, scaling,
            16, 16, 1, 1, RAW_ROWS, D, BLOCK_C, BLOCK_M, True, USE_MASK, DTYPE, USE_ASSEMBLY,
        )  # fmt: skip
        store_partial(outputs, b_top, b_total, output, lse, row, rows, i_split, splits, 16, D, BLOCK_C)


@triton.jit(do_not_specialize=["splits"])
def merge_kernel(
    partial, lse, output, splits, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr
):  # fmt: skip
    """Join the partial outputs of one query row: sum_s exp(lse_s - max) o_s / sum_s exp(lse_s - max).

    Grid: query rows.

    Args:
        partial: float32 [rows, splits, D].
        lse: float32 [rows, splits].
        output: [rows, D].
    """
    i_row = tl.program_id(0).to(tl.int64)
    o_channel = tl.arange(0, BLOCK_D)
    b_output = tl.zeros([BLOCK_D], dtype=tl.float32)
    b_top = float("-inf")
    b_total = 0.0
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        b_lse = tl.load(lse + i_row * splits + split, mask=split < splits, other=float("-inf"))
        new_top = tl.maximum(b_top, tl.max(b_lse, axis=0))
        base = tl.where(new_top == float("-inf"), 0.0, new_top)
        b_weight = tl.exp(b_lse - base)
        decay = tl.exp(b_top - base)
        p_partial = partial + (i_row * splits + split)[:, None] * D + o_channel[None, :]
        mask = (split < splits)[:, None] & (o_channel < D)[None, :]
        b_partial = tl.load(p_partial, mask=mask, other=0.0)
        b_output = b_output * decay + tl.sum(b_partial * b_weight[:, None], axis=0)
        b_total = b_total * decay + tl.sum(b_weight, axis=0)
        b_top = new_top
    b_output = b_output / tl.where(b_total > 0, b_total, 1.0)
    tl.store(output + i_row * D + o_channel, b_output, mask=o_channel < D)


def opaque(n: int) -> int:
    """The number in a form that Triton compiles no special version for (it does for 1 and for multiples of 16)."""
    return 16 * n + 8


def attend(
    query: Tensor,
    segments: Sequence[Segment],
    raw_key: Tensor,
    raw_value: Tensor,
    raw_length: int,
    *,
    scaling: float,
    raw_mask: Tensor | None,
    tile: AttendTile | None = None,
) -> Tensor:
    """See `wq_kernels.attend`; `tile` replaces the choice of launch.py."""
    batch, query_heads, queries, channels = query.shape
    heads = raw_key.shape[1]
    group = query_heads // heads
    segments = [segment for segment in segments if segment.tokens]
    shapes = [segment_shape(segment) for segment in segments]
    gpu = card(query.device)
    tile = tile or choose_tile(group * queries, channels, shapes, gpu)
    plan = plan_attend(group * queries, batch * heads, shapes, raw_length, tile, gpu)
    if plan.splits == 0:
        return torch.zeros_like(query)
    partial = torch.empty(batch, query_heads, queries, plan.splits, channels, device=query.device)
    lse = torch.empty(batch, query_heads, queries, plan.splits, device=query.device)
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    first_splits = [sum(s.splits for s in plan.segments[:i]) for i in range(len(segments))]
    attend_kernel[(plan.splits, -(-group * queries // tile.query_block), batch * heads)](
        query, partial, lse,
        tuple(pointers(segment.key) for segment in segments),
        tuple(pointers(segment.value) for segment in segments),
        tuple(
            (opaque(stretch.rows), opaque(stretch.rows_per_split), opaque(first))
            for stretch, first in zip(plan.segments, first_splits, strict=True)
        ),
        raw_key, raw_value, raw_key if raw_mask is None else raw_mask, raw_length, plan.raw.rows_per_split,
        *query.stride()[:3], *raw_key.stride()[:3], *raw_value.stride()[:3],
        0 if raw_mask is None else raw_mask.stride(0),
        scaling * LOG2_E, heads, group, queries,
        KEY_BITS=tuple(shape.key_bits for shape in shapes),
        VALUE_BITS=tuple(shape.value_bits for shape in shapes),
        WINDOWS=tuple(shape.window for shape in shapes),
        ROWS=tuple(stretch.tile_rows for stretch in plan.segments),
        T=tuple(shape.tokens_per_row for shape in shapes),
        RAW_ROWS=plan.raw.tile_rows,
        D=channels,
        BLOCK_C=tile.channel_block,
        BLOCK_M=tile.query_block,
        USE_MASK=raw_mask is not None,
        DTYPE=tl.float32 if query.dtype == torch.float32 else tl.float16,
        USE_ASSEMBLY=query.dtype != torch.float32 and not isinstance(attend_kernel, InterpretedFunction),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
    merge_kernel[(batch * query_heads * queries,)](
        partial, lse, output, plan.splits,
        D=channels, BLOCK_D=next_power_of_two(channels), BLOCK_S=32, num_warps=4,
    )  # fmt: skip
    return output


def pointers(block: Block) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors of a block; a raw one has no scale and no minimum, and its data stands in for them."""
    if block.scale is None or block.minimum is None:
        return block.data, block.data, block.data
    return block.data, block.scale, block.minimum
