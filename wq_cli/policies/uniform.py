"""Uniform widths: the full-precision baseline and round-to-nearest (RTN) controls.

By default they have WindowQuant's own codec, so that only the search is missing: the distance to `windowquant` at equal
effective bits is what the search is worth. Other axes are the controls of methods that group along them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from wq_cli.errors import UsageError
from wq_cli.policies.base import FULL_PRECISION, LayerPlan, Policy
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wq_cli.codecs import Coding

KIVI_GROUP = 32


@dataclass(frozen=True)
class RtnOptions(Options):
    """Options of `rtn8`, `rtn4` and `rtn2`.

    Attributes:
        axes: What shares a scale: `window`, the tokens of a window in each channel; `token`, channels of a token;
            `kivi`, the first for keys and 32 channels of a token for values; `tensor`, everything in a window, which
            is the paper's "per-tensor" by the size of its metadata.
        group: Channels of a token that share one where `axes` is `token`, in the order of KV heads; 0 is a head.
        key_centering: Whether the mean of every 32 keys is taken away first where `axes` is `token`.
    """

    axes: Literal["window", "token", "kivi", "tensor"] = "window"
    group: int = 0
    key_centering: bool = False

    def __post_init__(self) -> None:
        if self.group < 0:
            raise UsageError("`group` of a uniform policy must not be negative")


class Uniform(Policy):
    """Every window at the same width, keys and values alike."""

    bits: ClassVar[int]

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        levels = np.zeros(relevance.shape[1], dtype=np.int64)
        return self._plan([(self.bits, self.bits)], levels)


class Full(Uniform):
    """Nothing is quantized: the model's own dtype everywhere."""

    bits = FULL_PRECISION


class Rtn(Uniform):
    """Asymmetric round-to-nearest."""

    options_type = RtnOptions
    options: RtnOptions

    def coding(self) -> Coding:
        if self.options.axes == "window":
            return super().coding()
        from wq_cli.blocks import TokenQuantizer
        from wq_cli.codecs import ChannelInWindow, LayerCodec, PerToken, PerWindow

        window = self.settings.window
        if self.options.axes == "tensor":
            return PerWindow(window)
        if self.options.axes == "token":
            keys = TokenQuantizer(group=self.options.group, centred=self.options.key_centering)
            return LayerCodec(PerToken(window, keys), PerToken(window, replace(keys, centred=False)))
        values = PerToken(window, TokenQuantizer(group=KIVI_GROUP))
        return LayerCodec(ChannelInWindow(window, self.settings.zero_point), values)


class Rtn8(Rtn):
    """8 bits."""

    bits = 8


class Rtn4(Rtn):
    """4 bits."""

    bits = 4


class Rtn2(Rtn):
    """2 bits."""

    bits = 2
