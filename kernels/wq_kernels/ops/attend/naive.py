"""Attention over packed segments in plain PyTorch: piece by piece, then one merge by log-sum-exp.

Codes are masked byte by byte and left where they lie in the byte. The channels of a token so come in the order of
`byte_order`, which queries and outputs are brought into and back from, and as multiples of a power of two, which is
taken out of the scales. Minima meet the queries, or the weights, once a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial

import torch
from torch import Tensor

from wq_kernels.launch import PIECE_ELEMENTS
from wq_kernels.layout import Block, Segment


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
        for start, stop in _ranges(segment.key.windows, piece_tokens // segment.key.window):
            scores = score(rows, segment.key, start, stop, scratch)
            pieces.append(
                attend_piece(scores, partial(weigh, block=segment.value, start=start, stop=stop, scratch=scratch))
            )
    for start, stop in _ranges(raw_length, piece_tokens):
        scores = rows @ scratch.convert(raw_key[:, :, start:stop]).mT
        hidden = _hidden(start, stop, raw_length, queries, raw_mask, query.device)
        if hidden is not None:
            scores.masked_fill_(hidden.repeat(1, 1, query_heads // heads, 1), -torch.inf)
        pieces.append(attend_piece(scores, partial(weigh_raw, value=raw_value[:, :, start:stop], scratch=scratch)))
    if not pieces:
        return torch.zeros_like(query)
    if len(pieces) == 1:
        return pieces[0][0].reshape(query.shape).to(query.dtype)
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


class Scratch:
    """Buffers that the pieces of one call share; a fresh large allocation per piece would cost more than the work.

    Args:
        device: Where the buffers live.
        dtype: Of values, float32 or float64.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._codes = torch.empty(0, dtype=torch.uint8, device=device)
        self._values = torch.empty(0, dtype=dtype, device=device)

    def codes(self, *shape: int) -> Tensor:
        """An uninitialised uint8 tensor; the previous one becomes invalid."""
        self._codes, view = _view(self._codes, shape)
        return view

    def values(self, *shape: int) -> Tensor:
        """An uninitialised tensor of the dtype; the previous one becomes invalid."""
        self._values, view = _view(self._values, shape)
        return view

    def convert(self, tensor: Tensor) -> Tensor:
        """The tensor itself where it has the dtype, else a copy that takes the place of the previous `values`."""
        return tensor if tensor.dtype == self.dtype else self.values(*tensor.shape).copy_(tensor)


def _view(buffer: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    size = torch.Size(shape).numel()
    if buffer.numel() < size:
        buffer = buffer.new_empty(size)
    return buffer, buffer[:size].view(shape)


@lru_cache
@torch.inference_mode(False)  # what is kept serves calls with gradients too
def byte_order(channels: int, bits: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Channels field by field of the bytes of a token, int64 [D], the inverse order, and factors [D] for shifts.

    Field j of byte b, bytes from the low end of a word as the CPU stores them, is channel b * 8 / bits + j.
    """
    fields = 8 // bits
    order = torch.arange(channels, device=device).view(-1, fields).T.flatten()
    factors = 0.5 ** (torch.arange(fields, device=device) * bits).repeat_interleave(channels // fields)
    return order, order.argsort(), factors


def scaled_codes(block: Block, start: int, stop: int, scratch: Scratch) -> Tensor:
    """scale * code of windows [start, stop) in the scratch's dtype, channels in `byte_order`.

    Returns:
        [B, Hkv, (stop - start) * S, D], valid until the scratch is used again.
    """
    assert block.scale is not None
    stored = block.data[:, :, start * block.window : stop * block.window].view(torch.uint8)
    fields, (batch, heads, tokens, count) = 8 // block.bits, stored.shape
    values = scratch.values(batch, heads, tokens, fields, count)
    masked = scratch.codes(*stored.shape)
    order, _, factors = byte_order(block.channels, block.bits, stored.device)
    scale = block.scale[:, :, start:stop].index_select(-1, order).to(values.dtype).mul_(factors)
    for j in range(fields):
        field = torch.bitwise_and(stored, (2**block.bits - 1) << (j * block.bits), out=masked) if fields > 1 else stored
        values[..., j, :].copy_(field)
    values.view(batch, heads, stop - start, block.window, block.channels).mul_(scale.unsqueeze(3))
    return values.view(batch, heads, tokens, block.channels)


def score(rows: Tensor, block: Block, start: int, stop: int, scratch: Scratch) -> Tensor:
    """Products of queries [B, Hkv, M, D] and the keys of windows [start, stop): [B, Hkv, M, T]."""
    if block.is_raw:
        return rows @ scratch.convert(block.data[:, :, start * block.window : stop * block.window]).mT
    assert block.minimum is not None
    order, _, _ = byte_order(block.channels, block.bits, rows.device)
    scores = rows.index_select(-1, order) @ scaled_codes(block, start, stop, scratch).mT
    offset = rows @ block.minimum[:, :, start:stop].to(rows.dtype).mT
    scores.view(*offset.shape, block.window).add_(offset.unsqueeze(-1))
    return scores


def weigh(weights: Tensor, block: Block, start: int, stop: int, scratch: Scratch) -> Tensor:
    """Sums [B, Hkv, M, D] of the values of windows [start, stop) under weights [B, Hkv, M, T]."""
    if block.is_raw:
        return weigh_raw(weights, block.data[:, :, start * block.window : stop * block.window], scratch)
    assert block.minimum is not None
    _, back, _ = byte_order(block.channels, block.bits, weights.device)
    output = (weights @ scaled_codes(block, start, stop, scratch)).index_select(-1, back)
    totals = weights.view(*weights.shape[:3], stop - start, block.window).sum(dim=-1)
    return output.add_(totals @ block.minimum[:, :, start:stop].to(weights.dtype))


def weigh_raw(weights: Tensor, value: Tensor, scratch: Scratch) -> Tensor:
    """Sums [B, Hkv, M, D] of raw values [B, Hkv, T, D] under weights [B, Hkv, M, T]."""
    return weights @ scratch.convert(value)


def attend_piece(scores: Tensor, weigh: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Softmax attention over some of the tokens, in the form that `merge` joins.

    Args:
        scores: [B, Hkv, M, T], M = G * Q rows per KV head, -inf where a row must not see; overwritten.
        weigh: Gives the sums of values [B, Hkv, M, D] under weights [B, Hkv, M, T].

    Returns:
        Output [B, Hkv, M, D] and natural log-sum-exp of the scores [B, Hkv, M]; 0 and -inf where nothing is seen.
    """
    # Where nothing is seen a finite number takes the place of -inf, whose difference to itself is no number.
    top = scores.amax(dim=-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
    weights = scores.sub_(top).exp_()
    # At least 1, the highest weight, unless nothing is seen.
    total = weights.sum(dim=-1, keepdim=True)
    output = weigh(weights).div_(total.clamp(min=1))
    return output, (top + total.log()).squeeze(-1)


def merge(outputs: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Join partial attentions over disjoint tokens.

    Args:
        outputs: [P, B, Hkv, M, D], each normalised over its own tokens.
        lse: [P, B, Hkv, M], natural log-sum-exp of its scores.

    Returns:
        Output [B, Hkv, M, D] and log-sum-exp [B, Hkv, M] over all tokens; 0 and -inf where nothing is seen.
    """
    top = lse.amax(dim=0).clamp_(min=torch.finfo(lse.dtype).min)
    weights = (lse - top).exp()
    total = weights.sum(dim=0)
    output = (outputs * weights.unsqueeze(-1)).sum(dim=0) / total.clamp(min=1).unsqueeze(-1)
    return output, top + total.log()
