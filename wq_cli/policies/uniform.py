"""Uniform widths: the full-precision baseline and round-to-nearest (RTN) controls with WindowQuant's own codec.

Only the search is missing, so the distance to `windowquant` at equal effective bits is what the search is worth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from wq_cli.policies.base import FULL_PRECISION, LayerPlan, Policy

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Uniform(Policy):
    """Every window at the same width, keys and values alike."""

    bits: ClassVar[int]

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        levels = np.zeros(relevance.shape[1], dtype=np.int64)
        return self._plan([(self.bits, self.bits)], levels)


class Full(Uniform):
    """Nothing is quantized: the model's own dtype everywhere."""

    bits = FULL_PRECISION


class Rtn8(Uniform):
    """8 bits."""

    bits = 8


class Rtn4(Uniform):
    """4 bits."""

    bits = 4


class Rtn2(Uniform):
    """2 bits."""

    bits = 2
