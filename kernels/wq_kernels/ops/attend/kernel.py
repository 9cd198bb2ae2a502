"""Attention over packed segments in Triton: split-KV flash decoding, all widths in one launch, then one merge.

A program takes one stretch of one segment and a block of the query rows of one KV head. Keys are the left operand of
the score product, tokens as rows and query rows as columns, and values the left operand of the output product, channels
as rows: unpacked values stay in registers, and few query rows waste little of a tile. A tile is a number of rows of
words; token p of every row forms plane p, one product per plane, and the scores stay apart by plane through the softmax
because the order of tokens does not matter.

Packed values enter a product as x / 2**bits, in float16 whatever the half type of the model: its 11 bits hold codes and
scales better than the 8 of bfloat16. code / 2**bits is exact there and code / 2**bits * scale finite for every finite
scale; the factor 2**bits goes into the scale of the scores and of the output. Keys and values of a bfloat16 model are
therefore limited to 65504 * 2**bits in magnitude, queries to 65504 (they are clamped).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from wq_kernels.launch import card, describe, next_power_of_two, plan_attend, tokens_per_row
from wq_kernels.layout import Block, Segment

LN_2 = tl.constexpr(0.6931471805599453)
LOG2_E = 1.4426950408889634


def _unpack_assembly(bits: int) -> tl.constexpr:
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


UNPACK_2, UNPACK_4, UNPACK_8 = (_unpack_assembly(bits) for bits in (2, 4, 8))


@triton.jit
def byte_planes(words, scale, minimum, BYTE: tl.constexpr, BITS: tl.constexpr, USE_ASSEMBLY: tl.constexpr):
    """The 8 / BITS planes x / 2**BITS of byte BYTE of each word, a tuple of tensors of scale's dtype and words' shape.

    Args:
        words: int32, any shape.
        scale: Same shape.
        minimum: Same shape, minimum / 2**BITS.
        USE_ASSEMBLY: float16 on a GPU only; an interpreter cannot run it.
    """
    if USE_ASSEMBLY:
        selector = 0x4400 + 0x1111 * BYTE
        if BITS == 2:
            return tl.inline_asm_elementwise(
                UNPACK_2,
                "=r,=r,=r,=r,r,r,r,r,r,r",
                [words, selector, scale, minimum],
                dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
                is_pure=True,
                pack=2,
            )
        if BITS == 4:
            return tl.inline_asm_elementwise(
                UNPACK_4,
                "=r,=r,r,r,r,r,r,r",
                [words, selector, scale, minimum],
                dtype=(tl.float16, tl.float16),
                is_pure=True,
                pack=2,
            )
        return (
            tl.inline_asm_elementwise(
                UNPACK_8,
                "=r,r,r,r,r,r,r",
                [words, selector, scale, minimum],
                dtype=tl.float16,
                is_pure=True,
                pack=2,
            ),
        )
    planes = ()
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
def key_scores(
    b_q, block, stride, row, channel, mask,
    BITS: tl.constexpr, T: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Products of the keys of tile rows with the queries [D, M]: T planes [ROWS, M] of x / 2**BITS (x when raw)."""
    scores = ()
    ROWS_PER_WINDOW: tl.constexpr = (WINDOW + T - 1) // T
    if BITS == 16:
        for part in tl.static_range(T):
            source, present = source_row(row, part, T, WINDOW, ROWS_PER_WINDOW)
            b_k = tl.load(block[0] + source * stride + channel, mask=mask & present, other=0.0)
            scores = scores + (tl.dot(b_k, b_q, input_precision="ieee"),)
    else:
        WORDS: tl.constexpr = T * BITS // 32
        b_scale, b_minimum = load_metadata(block, row, channel, mask, BITS, ROWS_PER_WINDOW, D, DTYPE)
        for part in tl.static_range(WORDS):
            source, present = source_row(row, part, WORDS, (WINDOW * BITS + 31) // 32, ROWS_PER_WINDOW)
            b_words = tl.load(block[0] + source * stride + channel, mask=mask & present, other=0)
            for byte in tl.static_range(4):
                planes = byte_planes(b_words, b_scale, b_minimum, byte, BITS, USE_ASSEMBLY)
                for i in tl.static_range(8 // BITS):
                    scores = scores + (tl.dot(planes[i], b_q, input_precision="ieee"),)
    return scores


@triton.jit
def add_values(
    b_output, weights, block, stride, row, channel, mask,
    BITS: tl.constexpr, T: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr,
    DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Output [D, M] plus the values of tile rows, transposed and over 2**BITS, times T planes of weights [ROWS, M]."""
    ROWS_PER_WINDOW: tl.constexpr = (WINDOW + T - 1) // T
    if BITS == 16:
        for part in tl.static_range(T):
            source, present = source_row(row, part, T, WINDOW, ROWS_PER_WINDOW)
            b_v = tl.load(block[0] + source * stride + channel, mask=mask & present, other=0.0)
            b_output = tl.dot(b_v, weights[part].to(b_v.dtype), b_output, input_precision="ieee")
    else:
        WORDS: tl.constexpr = T * BITS // 32
        b_scale, b_minimum = load_metadata(block, row, channel, mask, BITS, ROWS_PER_WINDOW, D, DTYPE)
        for part in tl.static_range(WORDS):
            source, present = source_row(row, part, WORDS, (WINDOW * BITS + 31) // 32, ROWS_PER_WINDOW)
            b_words = tl.load(block[0] + source * stride + channel, mask=mask & present, other=0)
            for byte in tl.static_range(4):
                planes = byte_planes(b_words, b_scale, b_minimum, byte, BITS, USE_ASSEMBLY)
                for i in tl.static_range(8 // BITS):
                    b_weight = weights[(part * 4 + byte) * (8 // BITS) + i].to(planes[i].dtype)
                    b_output = tl.dot(planes[i], b_weight, b_output, input_precision="ieee")
    return b_output


@triton.jit
def attend_stretch(
    b_q, key, value, key_stride, value_stride, first, stop, last_seen, p_mask, scaling,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, T: tl.constexpr, WINDOW: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
    IS_RUN: tl.constexpr, USE_MASK: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
):  # fmt: skip
    """Attention of queries [D, M] over tile rows [first, stop): output [D, M], log2-sum-exp2 [M].

    Args:
        last_seen: [M], last row that a query may see; used when IS_RUN.
        p_mask: bool per row, False for never; used when USE_MASK.
        scaling: Of the scores, in base 2.
    """
    o_row = tl.arange(0, ROWS)
    o_channel = tl.arange(0, BLOCK_D)
    b_output = tl.zeros([BLOCK_D, BLOCK_M], dtype=tl.float32)
    b_top = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    b_total = tl.zeros([BLOCK_M], dtype=tl.float32)
    score_scale = scaling if KEY_BITS == 16 else scaling * 2**KEY_BITS
    for start in range(first, stop, ROWS):
        row = (start + o_row).to(tl.int64)
        m_key = (row < stop)[:, None]
        m_value = (row < stop)[None, :]
        if D < BLOCK_D:
            m_key = m_key & (o_channel < D)[None, :]
            m_value = m_value & (o_channel < D)[:, None]
        products = key_scores(
            b_q, key, key_stride, row[:, None], o_channel[None, :], m_key,
            KEY_BITS, T, WINDOW, D, DTYPE, USE_ASSEMBLY,
        )  # fmt: skip
        visible = (row < stop)[:, None]
        if IS_RUN:
            visible = visible & (row[:, None] <= last_seen[None, :])
        if USE_MASK:
            visible = visible & tl.load(p_mask + row, mask=row < stop, other=False)[:, None]
        scores = ()
        b_new_top = b_top
        for p in tl.static_range(T):
            seen = visible
            if WINDOW % T != 0:
                seen = visible & (row % ((WINDOW + T - 1) // T) * T + p < WINDOW)[:, None]
            b_score = tl.where(seen, products[p] * score_scale, float("-inf"))
            b_new_top = tl.maximum(b_new_top, tl.max(b_score, axis=0))
            scores = scores + (b_score,)
        # Keeps -inf - -inf out of the exponent while nothing is seen.
        b_base = tl.where(b_new_top == float("-inf"), 0.0, b_new_top)
        b_decay = tl.exp2(b_top - b_base)
        weights = ()
        b_total = b_total * b_decay
        for p in tl.static_range(T):
            weights = weights + (tl.exp2(scores[p] - b_base[None, :]),)
            b_total = b_total + tl.sum(weights[p], axis=0)
        b_output = add_values(
            b_output * b_decay[None, :], weights, value, value_stride, row[None, :], o_channel[:, None], m_value,
            VALUE_BITS, T, WINDOW, D, DTYPE, USE_ASSEMBLY,
        )  # fmt: skip
        b_top = b_new_top
    b_output = b_output / tl.where(b_total > 0, b_total, 1.0)[None, :]
    if VALUE_BITS != 16:
        b_output = b_output * 2**VALUE_BITS
    return b_output, b_top + tl.log2(b_total)


@triton.jit
def store_partial(b_output, b_lse, output, lse, row, rows, split, splits, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """Output [D, M] to [rows, splits, D] and log2-sum-exp2 [M] to [rows, splits] (natural), both of one KV head."""
    o_channel = tl.arange(0, BLOCK_D)
    place = row.to(tl.int64) * splits + split
    tl.store(lse + place, b_lse * LN_2, mask=row < rows)
    p_output = output + place[None, :] * D + o_channel[:, None]
    tl.store(p_output, b_output, mask=(row < rows)[None, :] & (o_channel < D)[:, None])


@triton.jit(do_not_specialize=["raw_length", "raw_rows_per_split"])
def attend_kernel(
    query, output, lse, keys, values, extents, raw_key, raw_value, raw_mask, raw_length, raw_rows_per_split,
    stride_qb, stride_qh, stride_qq, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_mb,
    scaling, heads, group, queries,
    KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, WINDOWS: tl.constexpr, ROWS: tl.constexpr, T: tl.constexpr,
    RAW_ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
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
    o_channel = tl.arange(0, BLOCK_D)
    p_q = query + batch * stride_qb + (head * group + row // queries) * stride_qh + row % queries * stride_qq
    b_q = tl.load(p_q[None, :] + o_channel[:, None], mask=(row < rows)[None, :] & (o_channel < D)[:, None], other=0.0)
    b_q_packed = b_q
    if b_q.dtype == tl.bfloat16:
        b_q_packed = tl.clamp(b_q.to(tl.float32), -65504.0, 65504.0)
    b_q_packed = b_q_packed.to(DTYPE)
    last_seen = raw_length - queries + row % queries
    output += i_head * rows * splits * D
    lse += i_head * rows * splits
    for i in tl.static_range(len(KEY_BITS)):
        segment_rows, rows_per_split, first_split = extents[i][0] // 16, extents[i][1] // 16, extents[i][2] // 16
        first = (i_split - first_split) * rows_per_split
        if (first >= 0) & (first < segment_rows):
            windows = i_head * (segment_rows // ((WINDOWS[i] + T[i] - 1) // T[i]))
            b_output, b_lse = attend_stretch(
                b_q if KEY_BITS[i] == 16 else b_q_packed,
                head_block(keys[i], windows, KEY_BITS[i], WINDOWS[i], D),
                head_block(values[i], windows, VALUE_BITS[i], WINDOWS[i], D),
                D, D, first, tl.minimum(first + rows_per_split, segment_rows), last_seen, raw_mask, scaling,
                KEY_BITS[i], VALUE_BITS[i], T[i], WINDOWS[i], ROWS[i], D, BLOCK_D, BLOCK_M,
                False, False, DTYPE, USE_ASSEMBLY,
            )  # fmt: skip
            store_partial(b_output, b_lse, output, lse, row, rows, i_split, splits, D, BLOCK_D)
    raw_splits = (raw_length + raw_rows_per_split - 1) // raw_rows_per_split
    first = (i_split - (splits - raw_splits)) * raw_rows_per_split
    if first >= 0:
        b_output, b_lse = attend_stretch(
            b_q,
            (raw_key + batch * stride_kb + head * stride_kh,),
            (raw_value + batch * stride_vb + head * stride_vh,),
            stride_kn, stride_vn, first, tl.minimum(first + raw_rows_per_split, raw_length),
            last_seen, raw_mask + batch * stride_mb, scaling,
            16, 16, 1, 1, RAW_ROWS, D, BLOCK_D, BLOCK_M, True, USE_MASK, DTYPE, USE_ASSEMBLY,
        )  # fmt: skip
        store_partial(b_output, b_lse, output, lse, row, rows, i_split, splits, D, BLOCK_D)


@triton.jit
def head_block(block, windows, BITS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr):
    """Pointers of a block moved past `windows` windows, to where a head begins."""
    if BITS == 16:
        return (block[0] + windows * WINDOW * D, block[1], block[2])
    metadata = windows * D
    return (block[0] + metadata * ((WINDOW * BITS + 31) // 32), block[1] + metadata, block[2] + metadata)


@triton.jit
def merge_kernel(
    partial, lse, output, stride_ob, stride_oh, stride_oq, splits, heads, group, queries,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """Join the partial outputs of one query row: sum_s exp(lse_s - max) o_s / sum_s exp(lse_s - max).

    Grid: B * Hq * Q rows, in the order [B, Hkv, G, Q].
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
    query, query_head = i_row % queries, i_row // queries
    batch, query_head = query_head // (heads * group), query_head % (heads * group)
    p_output = output + batch * stride_ob + query_head * stride_oh + query * stride_oq + o_channel
    tl.store(p_output, b_output, mask=o_channel < D)


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
) -> Tensor:
    """See `wq_kernels.attend`."""
    batch, query_heads, queries, channels = query.shape
    heads = raw_key.shape[1]
    group = query_heads // heads
    segments = [segment for segment in segments if segment.key.windows]
    plan = plan_attend(group * queries, batch * heads, describe(segments), raw_length, card(query.device))
    if plan.splits == 0:
        return torch.zeros_like(query)
    partial = torch.empty(batch, query_heads, queries, plan.splits, channels, device=query.device)
    lse = torch.empty(batch, query_heads, queries, plan.splits, device=query.device)
    output = torch.empty_like(query)
    first_splits = [sum(s.splits for s in plan.segments[:i]) for i in range(len(segments))]
    blocks = -(-group * queries // plan.query_block)
    attend_kernel[(plan.splits, blocks, batch * heads)](
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
        KEY_BITS=tuple(segment.key.bits for segment in segments),
        VALUE_BITS=tuple(segment.value.bits for segment in segments),
        WINDOWS=tuple(segment.key.window for segment in segments),
        ROWS=tuple(stretch.tile_rows for stretch in plan.segments),
        T=tuple(tokens_per_row(segment.key.bits, segment.value.bits) for segment in segments),
        RAW_ROWS=plan.raw.tile_rows,
        D=channels,
        BLOCK_D=max(16, next_power_of_two(channels)),
        BLOCK_M=plan.query_block,
        USE_MASK=raw_mask is not None,
        DTYPE=tl.float32 if query.dtype == torch.float32 else tl.float16,
        USE_ASSEMBLY=query.dtype != torch.float32 and not isinstance(attend_kernel, InterpretedFunction),
        num_warps=plan.warps,
        num_stages=plan.stages,
    )  # fmt: skip
    merge_kernel[(batch * query_heads * queries,)](
        partial, lse, output, *output.stride()[:3], plan.splits, heads, group, queries,
        D=channels, BLOCK_D=next_power_of_two(channels), BLOCK_S=16, num_warps=4,
    )  # fmt: skip
    return output


def pointers(block: Block) -> tuple[Tensor, Any, Any]:
    """Tensors of a block; a raw one has no scale and no minimum, and its data stands in for them."""
    return block.data, block.data if block.scale is None else block.scale, (
        block.data if block.minimum is None else block.minimum
    )
