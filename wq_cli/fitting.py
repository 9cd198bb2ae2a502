"""Codes, scales and minima that are fitted to what reads them, in the stored format of `ChannelInWindow`.

Three things that rounding between minimum and maximum does not do, and that cost no bit: scale and minimum by weighted
least squares, tokens that are looked at more counting more; a start inside the range, where that fits better; and codes
chosen channel after channel, each making good for the error of those before it as queries see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from wq_cli.codecs import Codec

if TYPE_CHECKING:
    from wq_kernels import Block

# From here on rounding is no longer what limits.
FITTED_BITS = 4
# Share of the range that a fit starts from; the best of them is kept, channel by channel.
STARTS = (1.0, 0.85, 0.7)
ROUNDS = 4
# What a token that nobody looked at counts, against the mean of its window.
LEAST_WEIGHT = 0.05
# Added to the diagonal of a metric, against its mean: queries to come are not quite those seen.
DAMPING = 0.1
# Channels that are rounded before what they leave is spread over all others.
BLOCK_CHANNELS = 16


@dataclass(frozen=True)
class FittedChannelInWindow(Codec):
    """Groups and bytes of `ChannelInWindow`, the numbers in them fitted at 2 and 4 bits.

    Attributes:
        window: S, tokens per group.
        weights: How much each token of the layer counts, [B, Hkv, L], not negative.
        metric: Second moment of the queries that read the keys, [B, Hkv, D, D]; None rounds every channel alone.
    """

    window: int
    weights: torch.Tensor
    metric: torch.Tensor | None = None

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block:
        from wq_kernels import Block, pack
        from wq_kernels.ops.pack.naive import gather, pack_codes

        if bits > FITTED_BITS:
            return pack(x, index, bits=bits, window=self.window)
        groups = gather(x, index).float().unflatten(2, (-1, self.window))
        weights = self.weights.gather(2, index[:, None].expand(-1, x.shape[1], -1)).unflatten(2, (-1, self.window))
        weights = weights / weights.mean(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        scale, minimum = fit(groups, (weights + LEAST_WEIGHT)[..., None], bits)
        if self.metric is None:
            codes = rounded(groups, scale, minimum, bits)
        else:
            codes = compensated(groups, scale, minimum, bits, self.metric)
        data = pack_codes(codes.flatten(2, 3).to(torch.int32), bits)
        pair = (t.squeeze(3).to(torch.float16).contiguous() for t in (scale, minimum))
        return Block(bits, self.window, x.shape[3], data, *pair)


def rounded(x: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, bits: int) -> torch.Tensor:
    """Nearest codes, as floats; 0 where the scale is."""
    return ((x - minimum) / torch.where(scale > 0, scale, torch.inf)).round_().clamp_(0, 2**bits - 1)


def fit(x: torch.Tensor, weights: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and minimum of every group with the least weighted squared error that a few rounds find.

    Codes for a pair, then the least-squares pair for the codes, and so on, as Lloyd's algorithm does for free levels.
    The weighted mean of a group's errors becomes 0, so that wide attention does not see them.

    Args:
        x: [B, Hkv, W, S, D] float32; a group is the S values of a window, head and channel.
        weights: [B, Hkv, W, S, 1], positive.
        bits: Width of a code.

    Returns:
        Two [B, Hkv, W, 1, D], rounded to float16.
    """
    low, high = x.amin(dim=3, keepdim=True), x.amax(dim=3, keepdim=True)
    total = weights.sum(dim=3, keepdim=True)
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
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


def _least_squares(
    x: torch.Tensor, codes: torch.Tensor, weights: torch.Tensor, total: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The pair that explains x best by given codes, rounded to float16; scale 0 where all codes are one."""
    of_codes = (weights * codes).sum(dim=3, keepdim=True) / total
    of_x = (weights * x).sum(dim=3, keepdim=True) / total
    centred = weights * (codes - of_codes)
    spread = (centred * codes).sum(dim=3, keepdim=True)
    slope = (centred * x).sum(dim=3, keepdim=True) / torch.where(spread > 1e-6 * total, spread, torch.inf)
    scale = _stored(slope)
    return scale, _stored(of_x - scale * of_codes)


def _stored(x: torch.Tensor) -> torch.Tensor:
    limit = torch.finfo(torch.float16).max
    return x.clamp(-limit, limit).half().float()


def compensated(
    x: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor, bits: int, metric: torch.Tensor
) -> torch.Tensor:
    """Codes that keep e^T H e of every token's error e small, H the second moment of the queries.

    For a token that is E[(q . e)^2], the squared error of its score. Channels are rounded from the one that counts most
    to the one that counts least, and the error of each is spread over the rest as GPTQ does for weights (arXiv
    2210.17323, algorithm 1), with queries in the place of activations.

    Args:
        x: [B, Hkv, W, S, D].
        scale, minimum: [B, Hkv, W, 1, D].
        bits: Width of a code.
        metric: H, [B, Hkv, D, D].
    """
    channels = x.shape[-1]
    order = (metric.diagonal(dim1=-2, dim2=-1) * (scale**2).mean(dim=(2, 3))).argsort(dim=-1, descending=True)
    factor = _spreading(metric, order)
    # Channels in front: a step then works on whole rows of memory.
    left, scale, minimum = (_by_channel(t, order) for t in (x, scale, minimum))
    codes = torch.empty_like(left)
    for start in range(0, channels, BLOCK_CHANNELS):
        stop = min(channels, start + BLOCK_CHANNELS)
        errors = []
        for j in range(start, stop):
            codes[j] = rounded(left[j], scale[j], minimum[j], bits)
            errors.append((left[j] - minimum[j] - scale[j] * codes[j]) / factor[j, j])
            left[j + 1 : stop] -= factor[j, j + 1 : stop] * errors[-1]
        if stop < channels:
            left[stop:] -= torch.einsum("jbh...,jkbh...->kbh...", torch.stack(errors), factor[start:stop, stop:])
    back = order.argsort(dim=-1)[:, :, None, None].expand(x.shape)
    return codes.permute(1, 2, 3, 4, 0).gather(-1, back)


def _by_channel(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """[B, Hkv, W, S, D] to [D, B, Hkv, W, S], channels in an order [B, Hkv, D]."""
    return x.gather(-1, order[:, :, None, None].expand(x.shape)).permute(4, 0, 1, 2, 3).contiguous()


def _spreading(metric: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Upper Cholesky factor of the inverse of the damped metric, channels in order, [D, D, B, Hkv, 1, 1]."""
    channels = metric.shape[-1]
    moment = metric.double()
    moment = moment.gather(2, order[..., None].expand_as(moment)).gather(3, order[:, :, None].expand_as(moment))
    mean = moment.diagonal(dim1=-2, dim2=-1).mean(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    eye = torch.eye(channels, dtype=moment.dtype, device=moment.device)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(moment / mean[..., None, None] + DAMPING * eye))
    factor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float().permute(2, 3, 0, 1)[..., None, None]
