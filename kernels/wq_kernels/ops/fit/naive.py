"""Fit, reorder and pack in plain PyTorch: the definition, and the path without a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from wq_kernels.layout import METADATA_DTYPE, Block
from wq_kernels.ops.fit.compensation import Compensation
from wq_kernels.ops.pack.naive import gather, pack_codes

# Share of the range that a fit starts from; the best of them is kept, channel by channel.
STARTS = (1.0, 0.85, 0.7)
ROUNDS = 4
# What a token that nobody looked at counts, against the mean of its window.
LEAST_WEIGHT = 0.05
# Weighted variance of the codes of a group below which they are all one.
LEAST_SPREAD = 1e-6
# Channels that are rounded before what they leave is spread over all others.
BLOCK_CHANNELS = 16


def fit(
    x: Tensor, index: Tensor, weights: Tensor, *, bits: int, window: int, compensation: Compensation | None
) -> Block:
    """See `wq_kernels.fit`."""
    groups = gather(x, index).float().unflatten(2, (-1, window))
    counts = weights.gather(2, index[:, None].expand(-1, x.shape[1], -1)).unflatten(2, (-1, window))
    counts = counts / counts.mean(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    scale, minimum = fit_pair(groups, (counts + LEAST_WEIGHT)[..., None], bits)
    if compensation is None:
        codes = rounded(groups, scale, minimum, bits)
    else:
        codes = compensated(groups, scale, minimum, bits, compensation)
    data = pack_codes(codes.flatten(2, 3).to(torch.int32), bits)
    pair = (t.squeeze(3).to(METADATA_DTYPE).contiguous() for t in (scale, minimum))
    return Block(bits, window, x.shape[3], data, *pair)


def rounded(x: Tensor, scale: Tensor, minimum: Tensor, bits: int) -> Tensor:
    """Nearest codes, as floats; 0 where the scale is."""
    return ((x - minimum) / torch.where(scale > 0, scale, torch.inf)).round_().clamp_(0, 2**bits - 1)


def fit_pair(x: Tensor, weights: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale and minimum of every group.

    Args:
        x: [B, Hkv, W, S, D] float32; a group is the S values of a window, head and channel.
        weights: [B, Hkv, W, S, 1], positive.
        bits: Width of a code.

    Returns:
        Two [B, Hkv, W, 1, D], rounded to float16.
    """
    low, high = x.amin(dim=3, keepdim=True), x.amax(dim=3, keepdim=True)
    total = weights.sum(dim=3, keepdim=True)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for share in STARTS:
        scale = (high - low) * (share / (2**bits - 1))
        minimum = low + (high - low) * ((1 - share) / 2)
        for _ in range(ROUNDS):
            scale, minimum = _least_squares(x, rounded(x, scale, minimum, bits), weights, total)
        error = (weights * (x - minimum - scale * rounded(x, scale, minimum, bits)) ** 2).sum(dim=3, keepdim=True)
        if best is None:
            best = error, scale, minimum
        else:
            better = error < best[0]
            found = (error, scale, minimum)
            best = tuple(torch.where(better, new, old) for new, old in zip(found, best, strict=True))  # type: ignore[assignment]
    assert best is not None
    return best[1], best[2]


def _least_squares(x: Tensor, codes: Tensor, weights: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """The pair that explains x best by given codes, rounded to float16; scale 0 where all codes are one."""
    of_codes = (weights * codes).sum(dim=3, keepdim=True) / total
    of_x = (weights * x).sum(dim=3, keepdim=True) / total
    centred = codes - of_codes
    weighted = weights * centred
    spread = (weighted * centred).sum(dim=3, keepdim=True)
    slope = (weighted * x).sum(dim=3, keepdim=True) / torch.where(spread > LEAST_SPREAD * total, spread, torch.inf)
    scale = _stored(slope)
    return scale, _stored(of_x - scale * of_codes)


def _stored(x: Tensor) -> Tensor:
    limit = torch.finfo(METADATA_DTYPE).max
    return x.clamp(-limit, limit).to(METADATA_DTYPE).float()


def compensated(x: Tensor, scale: Tensor, minimum: Tensor, bits: int, compensation: Compensation) -> Tensor:
    """Codes of channels that make good for each other's errors, as floats.

    Args:
        x: [B, Hkv, W, S, D].
        scale, minimum: [B, Hkv, W, 1, D].
        bits: Width of a code.
        compensation: For each [B, Hkv].
    """
    channels, order = x.shape[-1], compensation.order
    # Channels in front and in order: a step then works on whole rows of memory.
    left, scale, minimum = (_by_channel(t, order) for t in (x, scale, minimum))
    shares = compensation.shares.gather(3, order[:, :, None].expand_as(compensation.shares))
    shares = shares.permute(2, 3, 0, 1)[..., None, None]
    codes = torch.empty_like(left)
    for start in range(0, channels, BLOCK_CHANNELS):
        stop = min(channels, start + BLOCK_CHANNELS)
        errors = []
        for j in range(start, stop):
            codes[j] = rounded(left[j], scale[j], minimum[j], bits)
            errors.append(left[j] - minimum[j] - scale[j] * codes[j])
            left[j + 1 : stop] -= shares[j, j + 1 : stop] * errors[-1]
        if stop < channels:
            left[stop:] -= torch.einsum("jbh...,jkbh...->kbh...", torch.stack(errors), shares[start:stop, stop:])
    back = order.argsort(dim=-1)[:, :, None, None].expand(x.shape)
    return codes.permute(1, 2, 3, 4, 0).gather(-1, back)


def _by_channel(x: Tensor, order: Tensor) -> Tensor:
    """[B, Hkv, W, S, D] to [D, B, Hkv, W, S], channels in an order [B, Hkv, D]."""
    return x.gather(-1, order[:, :, None, None].expand(x.shape)).permute(4, 0, 1, 2, 3).contiguous()
