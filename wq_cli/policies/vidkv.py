"""VidKV (arXiv 2503.16257): keys and values per channel, which at 2 bits loses little on video models.

At 2 bits both sides have WindowQuant's groups: 32 tokens of a channel. Below, which is experimental:

- Keys at 1 + p bits: the share p of a head's channels with the widest range keeps 2 bits; the rest, a token at a time,
  is Fourier transformed along the channels and keeps signs, times the mean magnitude of each component in the window.
- Values at 1.58 bits: -m, 0 or m, where m is the mean magnitude of the group and what is below m / 2 becomes 0.

Our reading: a real signal's spectrum is n numbers, so the transform costs no more codes than it has channels; three
levels are stored five to a byte. The bits that are reported are those, with scales and minima. The last M mod S visual
tokens, text and what follows stay at full precision as for every policy here. The token-wise choice of value widths
(STP) is left out: `windowquant` chooses by relevance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wq_cli.codecs import ChannelInWindow, Codec, LayerCodec
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from wq_cli.blocks import TorchBlock

WIDE_SHARE = {"1.75": 0.75, "1.5": 0.5, "1.25": 0.25, "1": 0.0}


@dataclass(frozen=True)
class VidKvOptions(Options):
    """Options of `vidkv`; what is below 2 bits is experimental.

    Attributes:
        key_bits: 2, or the share of channels at 2 bits plus 1.
        value_bits: 2, or 1.58 for three levels.
    """

    key_bits: Literal["2", "1.75", "1.5", "1.25", "1"] = "2"
    value_bits: Literal["2", "1.58"] = "2"


class VidKv(Policy):
    """See the module."""

    options_type = VidKvOptions
    options: VidKvOptions

    def coding(self) -> LayerCodec:
        window, options = self.settings.window, self.options
        plain = ChannelInWindow(window, self.settings.zero_point)
        keys = plain if options.key_bits == "2" else SpectrumKeys(window, WIDE_SHARE[options.key_bits])
        values = plain if options.value_bits == "2" else TernaryValues(window)
        return LayerCodec(keys, values)

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        # Widths of plans are whole: those of the widest codes.
        return self._same_width(relevance.shape[1], 1 if self.options.key_bits == "1" else 2, 2)


@dataclass(frozen=True)
class TernaryValues(Codec):
    """-m, 0 or m in each channel of a window of S tokens."""

    window: int

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> TorchBlock:
        from wq_cli.blocks import ChannelBlock, gather

        return ChannelBlock.of_sign(gather(x, index), 3, self.window)


@dataclass(frozen=True)
class SpectrumKeys(Codec):
    """The channels with the widest range at 2 bits, the signs of the spectrum of the others.

    Attributes:
        window: S.
        share: Of the channels, that have 2 bits.
    """

    window: int
    share: float

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> TorchBlock:
        from wq_cli.blocks import ChannelBlock, SpectrumBlock, gather, spectrum

        tokens = gather(x, index).float()
        extent = tokens.amax(dim=(0, 1, 2)) - tokens.amin(dim=(0, 1, 2))
        order = extent.argsort(descending=True)
        wide = order[: int(len(order) * self.share)].sort().values
        rest = order[len(wide) :].sort().values
        return SpectrumBlock(
            ChannelBlock.of_range(tokens[..., wide], 4, self.window),
            ChannelBlock.of_sign(spectrum(tokens[..., rest]), 2, self.window),
            wide.short(),
        )
