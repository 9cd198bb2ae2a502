"""Attention over packed segments in Triton: split-KV flash decoding, all widths in one launch, then one merge.

A program is one warp that takes a piece of the line of all work (launch.py, `AttendPlan`), of one segment or the end of
one and the beginning of the next, for a block of the query rows of one KV head. Keys are the left operand of the score
product, tokens as rows and query rows as columns, and values the left operand of the output product, channels as rows:
few query rows waste little of a tile, and codes go from memory to the tensor cores with one logic operation for two of
them. Decode steps over usual shapes run lane by lane (packed.py), everything else in tiles
that Triton lays out (windows.py).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc, var-annotated"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from wq_kernels.launch import (
    AttendTile,
    Stretch,
    card,
    choose_tile,
    fits_registers,
    next_power_of_two,
    plan_attend,
    segment_shape,
)
from wq_kernels.layout import Block, Segment, words_per_token
from wq_kernels.ops.attend.packed import attend_packed
from wq_kernels.ops.attend.run import attend_run
from wq_kernels.ops.attend.windows import attend_windows

LOG2_E = 1.4426950408889634
# Every set of widths is a kernel of its own, which takes seconds to compile: these always come together.
USUAL_WIDTHS = ((4, 4), (2, 2))


@triton.jit
def store_partial(outputs, b_top, b_total, output, lse, row, m_row, slot, partials, D: tl.constexpr):
    """Normalise and store: output to [rows, partials, D], log2-sum-exp2 [M] to [rows, partials]."""
    place = row.to(tl.int64) * partials + slot
    b_total = tl.where(b_total > 0, b_total, 1.0)
    b_share = 1.0 / b_total
    tl.store(lse + place, b_top + tl.log2(b_total), mask=m_row)
    WIDTH: tl.constexpr = outputs[0].shape[0]
    for i in tl.static_range(len(outputs)):
        channel = i * WIDTH + tl.arange(0, WIDTH)
        p_output = output + place[None, :] * D + channel[:, None]
        tl.store(p_output, outputs[i] * b_share[None, :], mask=m_row[None, :] & (channel < D)[:, None])


@triton.jit
def head_block(block, windows, BITS: tl.constexpr, WINDOW: tl.constexpr, D: tl.constexpr):
    """Pointers of a block moved past `windows` windows, to where a head begins."""
    return (block[0] + windows * (WINDOW * D * BITS // 16), block[1] + windows * D, block[2] + windows * D)


@triton.jit
def units_of_program(program, budget, units, start, COST: tl.constexpr):
    """Units [first, stop) of a stretch that start in the time of a program (launch.py, `AttendPlan`)."""
    first = tl.maximum(program * budget - start + COST - 1, 0) // COST
    stop = tl.maximum((program + 1) * budget - start + COST - 1, 0) // COST
    return tl.minimum(first, units).to(tl.int32), tl.minimum(stop, units).to(tl.int32)


@triton.jit(do_not_specialize=["raw_length", "tops", "tiles", "partials"])
def attend_kernel(
    query, output, lse, scratch, tops, tiles, partials, budget, keys, values, extents,
    raw_key, raw_value, raw_mask, raw_length, raw_extent,
    stride_qb, stride_qh, stride_qq, stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, stride_mb,
    scaling, group, queries,
    HEADS: tl.constexpr, KEY_BITS: tl.constexpr, VALUE_BITS: tl.constexpr, WINDOWS: tl.constexpr,
    TILES: tl.constexpr, COSTS: tl.constexpr, IN_REGISTERS: tl.constexpr, RAW_TILE: tl.constexpr,
    RAW_COST: tl.constexpr, D: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_M: tl.constexpr, STAGES: tl.constexpr,
    LENGTH_ON_DEVICE: tl.constexpr, USE_MASK: tl.constexpr, DTYPE: tl.constexpr, USE_ASSEMBLY: tl.constexpr,
    PREFETCH: tl.constexpr,
):  # fmt: skip
    """Partial attention of each stretch in a program's share: softmax(q k^T) v over its tokens, and the log-sum-exp.

    Grid: programs x blocks of query rows x B * Hkv.

    Args:
        output: float32 [B, Hkv, G * Q, partials, D].
        lse: float32 [B, Hkv, G * Q, partials], base 2.
        scratch: float32 [2, B * Hkv, blocks, tiles, M], the two `tops` apart.
        budget: Time of a program, as `opaque` makes it.
        keys: Per segment (data, scale, minimum).
        values: As keys.
        extents: Per segment (units, start, slots, first tile) of its stretch, each as `opaque` makes it.
        raw_length: Tokens of the run, or where they are written when LENGTH_ON_DEVICE.
        raw_extent: As of a segment.
        scaling: Of the scores, times log2(e).
        KEY_BITS: Per segment, as are VALUE_BITS, WINDOWS (tokens per window) and TILES (tokens of a tile). All are
            constexpr because they shape the code. So are COSTS (time of a tile), since divisions by a number that is
            known take a fraction of the time, and IN_REGISTERS (whether `attend_packed` takes the segment).
        DTYPE: Of codes in a product.
    """
    program, i_block, i_head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    share = budget // 16
    rows = group * queries
    batch, head = i_head // HEADS, i_head % HEADS
    row = i_block * BLOCK_M + tl.arange(0, BLOCK_M)
    m_row = row < rows
    p_q = query + batch * stride_qb + (head * group + row // queries) * stride_qh + row % queries * stride_qq
    output += i_head * rows * partials * D
    lse += i_head * rows * partials
    scratch += (i_head * tl.num_programs(1) + i_block) * tiles * BLOCK_M
    for i in tl.static_range(len(KEY_BITS)):
        units, start = extents[i][0] // 16, extents[i][1] // 16
        first, stop = units_of_program(program, share, units, start, COSTS[i])
        if first < stop:
            before = i_head * (units // ((WINDOWS[i] + TILES[i] - 1) // TILES[i]))
            key = head_block(keys[i], before, KEY_BITS[i], WINDOWS[i], D)
            value = head_block(values[i], before, VALUE_BITS[i], WINDOWS[i], D)
            slot = program + extents[i][2] // 16
            if IN_REGISTERS[i]:
                column = tl.minimum(i_block * BLOCK_M + (tl.arange(0, 32) >> 2), rows - 1)
                p_column = query + batch * stride_qb + (head * group + column // queries) * stride_qh
                attend_packed(
                    p_column + column % queries * stride_qq, rows, i_block * BLOCK_M, key, value, first, stop, scaling,
                    output + slot.to(tl.int64) * D, lse + slot, partials * D,
                    KEY_BITS[i], VALUE_BITS[i], WINDOWS[i], TILES[i], D, USE_ASSEMBLY, PREFETCH,
                )  # fmt: skip
            else:
                outputs, b_top, b_total = attend_windows(
                    p_q, m_row, key, value, scratch + extents[i][3] // 16 * BLOCK_M, tops, first, stop, scaling,
                    KEY_BITS[i], VALUE_BITS[i], WINDOWS[i], TILES[i], D, BLOCK_C, BLOCK_M, STAGES, DTYPE, USE_ASSEMBLY,
                    PREFETCH,
                )  # fmt: skip
                store_partial(outputs, b_top, b_total, output, lse, row, m_row, slot, partials, D)
    start = raw_extent[1] // 16
    first, stop = units_of_program(program, share, raw_extent[0] // 16, start, RAW_COST)
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
        slot = program + raw_extent[2] // 16
        store_partial(outputs, b_top, b_total, output, lse, row, m_row, slot, partials, D)


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
    return tuple(opaque(n) for n in (stretch.units, stretch.start, stretch.slots, stretch.first_tile))


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
    if any(stride % 8 for stride in query.stride()[:3]) or query.data_ptr() % 16:
        query = query.clone(memory_format=torch.contiguous_format)  # lanes load 8 channels at once
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
    on_gpu = not isinstance(attend_kernel, InterpretedFunction)
    attend_kernel[(plan.programs, blocks, batch * heads)](
        query, partial, lse, scratch, scratch.shape[1], plan.tiles, plan.partials, opaque(plan.budget),
        tuple(pointers(segment.key) for segment in segments),
        tuple(pointers(segment.value) for segment in segments),
        tuple(extent(stretch) for stretch in plan.segments),
        raw_key, raw_value, raw_key if raw_mask is None else raw_mask, raw_length, extent(plan.raw),
        *query.stride()[:3], *raw_key.stride()[:3], *raw_value.stride()[:3],
        0 if raw_mask is None else raw_mask.stride(0),
        scaling * LOG2_E, group, queries,
        HEADS=heads,
        KEY_BITS=tuple(shape.key_bits for shape in shapes),
        VALUE_BITS=tuple(shape.value_bits for shape in shapes),
        WINDOWS=tuple(shape.window for shape in shapes),
        TILES=tuple(shape.tile_tokens for shape in shapes),
        COSTS=tuple(stretch.cost for stretch in plan.segments),
        IN_REGISTERS=tuple(not float32 and fits_registers(shape, channels, tile.query_block) for shape in shapes),
        RAW_TILE=tile.raw_tokens,
        RAW_COST=plan.raw.cost,
        D=channels,
        BLOCK_C=min(128, channels & -channels),
        BLOCK_M=tile.query_block,
        STAGES=tile.stages,
        LENGTH_ON_DEVICE=not isinstance(raw_length, int),
        USE_MASK=raw_mask is not None,
        DTYPE=tl.float32 if float32 else tl.float16,
        USE_ASSEMBLY=on_gpu and not float32,
        PREFETCH=on_gpu and gpu.bulk_prefetch,
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
    return block.data, block.scale, block.minimum
