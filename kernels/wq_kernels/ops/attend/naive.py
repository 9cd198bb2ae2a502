"""Attention over packed segments in plain PyTorch: piece by piece, then one merge by log-sum-exp."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from wq_kernels.launch import PIECE_ELEMENTS
from wq_kernels.layout import Segment
from wq_kernels.ops.unpack.naive import Scratch, dequantize


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
    compute = torch.promote_types(query.dtype, torch.float32)
    rows = query.to(compute).mul(scaling).reshape(batch, heads, -1, channels)
    scratch = Scratch(query.device, compute)
    piece_tokens = PIECE_ELEMENTS // (batch * heads * max(channels, rows.shape[2]))

    pieces = []
    for segment in segments:
        windows = segment.key.windows
        for start, stop in _ranges(windows, piece_tokens // segment.key.window):
            key = dequantize(segment.key, start, stop, scratch)
            pieces.append(attend_piece(rows, key, partial(dequantize, segment.value, start, stop, scratch), None))
    for start, stop in _ranges(raw_length, piece_tokens):
        hidden = _hidden(start, stop, raw_length, queries, raw_mask, query.device)
        hidden = hidden if hidden is None else hidden.repeat(1, 1, query_heads // heads, 1)
        key = scratch.convert(raw_key[:, :, start:stop])
        pieces.append(attend_piece(rows, key, partial(scratch.convert, raw_value[:, :, start:stop]), hidden))
    if not pieces:
        return torch.zeros_like(query)
    output, _ = merge(torch.stack([output for output, _ in pieces]), torch.stack([lse for _, lse in pieces]))
    return output.reshape(query.shape).to(query.dtype)


def _ranges(count: int, step: int) -> Iterator[tuple[int, int]]:
    step = max(1, step)
    return ((start, min(count, start + step)) for start in range(0, count, step))


def _hidden(
    start: int, stop: int, length: int, queries: int, mask: Tensor | None, device: torch.device
) -> Tensor | None:
    """Which raw tokens of [start, stop) a query row must not see: bool [B or 1, 1, Q, stop - start], None for none."""
    hidden = None
    if stop > length - queries + 1:
        last_seen = torch.arange(length - queries, length, device=device).view(1, 1, queries, 1)
        hidden = torch.arange(start, stop, device=device) > last_seen
    if mask is not None:
        padding = ~mask[:, None, None, start:stop].expand(-1, -1, queries, -1)
        hidden = padding if hidden is None else padding | hidden
    return hidden


def attend_piece(
    rows: Tensor, key: Tensor, value: Callable[[], Tensor], hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Softmax attention over some of the tokens, in the form that `merge` joins.

    Args:
        rows: Scaled queries [B, Hkv, M, D], M = G * Q rows per KV head.
        key: [B, Hkv, T, D].
        value: Gives [B, Hkv, T, D]; called after the keys' last use, so that it may take their place in memory.
        hidden: Tokens that a row must not see, bool broadcastable to [B, Hkv, M, T]; None when all are seen.

    Returns:
        Output [B, Hkv, M, D] and natural log-sum-exp of the scores [B, Hkv, M]; 0 and -inf where nothing is seen.
    """
    scores = rows @ key.mT
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    top = scores.amax(dim=-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = scores.sub_(top).exp_()
    total = weights.sum(dim=-1, keepdim=True)
    output = (weights @ value()) / torch.where(total > 0, total, 1.0)
    return output, (top + total.log()).squeeze(-1)


def merge(outputs: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Join partial attentions over disjoint tokens.

    Args:
        outputs: [P, B, Hkv, M, D], each normalised over its own tokens.
        lse: [P, B, Hkv, M], natural log-sum-exp of its scores.

    Returns:
        Output [B, Hkv, M, D] and log-sum-exp [B, Hkv, M] over all tokens; 0 and -inf where nothing is seen.
    """
    top = lse.amax(dim=0)
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = (lse - top).exp()
    total = weights.sum(dim=0)
    output = (outputs * weights.unsqueeze(-1)).sum(dim=0) / torch.where(total > 0, total, 1.0).unsqueeze(-1)
    return output, top + total.log()
