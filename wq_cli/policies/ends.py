"""Visual tokens near the ends of a prompt, for methods that keep the first and the latest tokens as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wq_cli.policies.base import FULL_PRECISION, LayerPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wq_cli.placement import VisualTokens


@dataclass(frozen=True)
class Ends:
    """How many of the visual tokens of a prompt are near its ends; of a batch, the most.

    Attributes:
        tokens: M, visual tokens.
        window: S.
        first, last: Visual tokens that stay at full precision at the start and at the end.
    """

    tokens: int
    window: int
    first: int
    last: int

    @classmethod
    def of(cls, visual: VisualTokens, sinks: int, recent: int) -> Ends:
        """Those among the first `sinks` and the last `recent` tokens of each prompt, text counted."""
        positions = visual.positions
        starts = 0 if visual.padding is None else (~visual.padding).sum(dim=1, keepdim=True)
        first = int((positions - starts < sinks).sum(dim=1).amax())
        last = int((positions >= visual.length - recent).sum(dim=1).amax())
        return cls(positions.shape[1], visual.window, first, last)

    def plan(self, key_bits: int, value_bits: int, others: NDArray[np.int64] | None = None) -> LayerPlan:
        """All tokens between the ends at one width.

        Args:
            key_bits, value_bits: Their widths.
            others: Numbers of more tokens that stay at full precision, [B, K], none of them near an end and no row
                with one twice.
        """
        stop = self.tokens - self.last
        starts = np.arange(self.tokens // self.window) * self.window
        between = (starts + self.window > self.first) & (starts < stop)
        bits = np.where(between[:, None], [key_bits, value_bits], FULL_PRECISION)
        numbers = np.arange(self.tokens)
        near = numbers[(numbers < self.first) | (numbers >= stop)][None]
        kept = near if others is None else np.concatenate([near.repeat(len(others), axis=0), others], axis=1)
        return LayerPlan(bits[:, 0], bits[:, 1], kept)
