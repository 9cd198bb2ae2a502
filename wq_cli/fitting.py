"""Codes, scales and minima that are fitted to what reads them, in the stored format of `ChannelInWindow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wq_cli.codecs import Codec

if TYPE_CHECKING:
    import torch

    from wq_cli.placement import VisualTokens
    from wq_kernels import Block, Compensation


@dataclass(frozen=True)
class FittedChannelInWindow(Codec):
    """Groups and bytes of `ChannelInWindow`, the numbers in them fitted at 2 and 4 bits.

    Attributes:
        window: S, tokens per group.
        weights: How much each token of the layer counts, [B, Hkv, L], not negative.
        compensation: How the channels of keys make good for each other's errors; None rounds every channel alone.
    """

    window: int
    weights: torch.Tensor
    compensation: Compensation | None = None

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block:
        from wq_kernels import FITTED_BITS, fit, pack

        if bits not in FITTED_BITS:
            return pack(x, index, bits=bits, window=self.window)
        return fit(x, index, self.weights, bits=bits, window=self.window, compensation=self.compensation)


def variance_in_windows(x: torch.Tensor, visual: VisualTokens) -> torch.Tensor:
    """Variance of each channel's values around the mean of their window, mean over windows, [B, Hkv, D].

    Without a window it is 0.

    Args:
        x: Keys or values of a layer, [B, Hkv, L, D].
        visual: Where the visual tokens are, on any device.
    """
    import torch

    from wq_kernels.ops.pack.naive import gather

    if not visual.windows:
        return x.new_zeros(*x.shape[:2], x.shape[3], dtype=torch.float32)
    tokens = visual.positions[:, : visual.windows * visual.window].to(x.device)
    return gather(x, tokens).float().unflatten(2, (-1, visual.window)).var(dim=3, correction=0).mean(dim=2)
