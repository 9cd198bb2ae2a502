"""Attention over plain keys and values: the raw run, and what it shares with windows."""

# ruff: noqa: RUF005 - Triton does not compile starred tuples
# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, misc, var-annotated"

from __future__ import annotations

import triton
import triton.language as tl


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
def zero_outputs(COUNT: tl.constexpr, ROWS: tl.constexpr, BLOCK_M: tl.constexpr):
    outputs = ()
    for _ in tl.static_range(COUNT):
        outputs = outputs + (tl.zeros([ROWS, BLOCK_M], dtype=tl.float32),)
    return outputs


@triton.jit
def new_maximum(b_top, b_highest):
    """The running maximum [M] with another one, what scores are measured from, and the decay of what was summed."""
    b_new_top = tl.maximum(b_top, b_highest)
    # While nothing is seen, 0 takes the place of -inf, whose difference to itself is no number.
    b_base = tl.where(b_new_top == float("-inf"), 0.0, b_new_top)
    return b_new_top, b_base, tl.exp2(b_top - b_base)


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
