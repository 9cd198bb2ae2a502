"""KIVI (arXiv 2402.02750): keys quantized per channel, values per token, the latest tokens not.

Keys share a scale along a window's tokens in each channel, values along 32 channels of each token, both with a float
minimum. Of a prompt of L tokens the keys keep the last L mod R at full precision, the values the last R.

Our reading: text and what follows the prompt stay at full precision as for every policy here, so that R reaches from
the prompt's end back into the video and does not move on while the answer grows. Keys and values of a window lie
together: the values that stay are rounded up to whole windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from wq_cli.errors import UsageError
from wq_cli.policies.base import FULL_PRECISION, LayerPlan, Policy
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wq_cli.codecs import Coding
    from wq_cli.placement import VisualTokens


@dataclass(frozen=True)
class KiviOptions(Options):
    """Options of `kivi`.

    Attributes:
        bits: Width of the codes; the authors advise 4 where query heads share KV heads.
        group: Channels of a value that share a scale. Tokens of a key channel that do are `--window`.
        residual: R.
    """

    bits: Literal[2, 4] = 2
    group: int = 32
    residual: int = 128

    def __post_init__(self) -> None:
        if self.group < 1 or self.residual < 1:
            raise UsageError("`group` and `residual` of `kivi` must be positive")


class Kivi(Policy):
    """See the module."""

    options_type = KiviOptions
    options: KiviOptions

    def begin(self, visual: VisualTokens, decoder: Any) -> None:
        """Count the windows that are old enough, over rows the fewest."""
        ends = visual.positions[:, visual.window - 1 :: visual.window].amax(dim=0).cpu().numpy()
        length, residual = visual.length, self.options.residual
        self._old_keys = int((ends < length - length % residual).sum())
        self._old_values = int((ends < length - residual).sum())

    def coding(self) -> Coding:
        from wq_cli.blocks import TokenQuantizer
        from wq_cli.codecs import ChannelInWindow, LayerCodec, PerToken

        window = self.settings.window
        return LayerCodec(ChannelInWindow(window), PerToken(window, TokenQuantizer(group=self.options.group)))

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        plan = self._same_width(relevance.shape[1], FULL_PRECISION, FULL_PRECISION)
        plan.key_bits[: self._old_keys] = self.options.bits
        plan.value_bits[: self._old_values] = self.options.bits
        return plan
