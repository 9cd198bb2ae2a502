"""WindowQuant (arXiv 2605.02262): relevant windows keep their precision, layer by layer (section 3.2, eqs 8-11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from wq_cli import windows
from wq_cli.policies.base import Budget, LayerPlan, Policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wq_cli.config import Quantization

# (key bits, value bits) of the levels low, middle, high.
PAPER_WIDTHS = ((2, 2), (4, 4), (16, 16))


class WindowQuant(Policy):
    """Above T_high full precision, below T_low 2 bits, 4 bits between (equality and NaN included).

    A batch shares one plan: the majority over its requests, ties to the higher width (section 3.2.3).
    """

    needs_scores: ClassVar[bool] = True
    needs_sensitivity: ClassVar[bool] = True

    def __init__(self, settings: Quantization) -> None:
        super().__init__(settings)
        self._budget_levels: NDArray[np.int64] | None = None

    @property
    def widths(self) -> tuple[tuple[int, int], ...]:
        """(key bits, value bits) of the levels, lowest first."""
        return self.settings.kv_split[::-1] if self.settings.kv_split else PAPER_WIDTHS

    def thresholds(self, sensitivity: float | None) -> tuple[float, float] | None:
        if sensitivity is None or self._budget_levels is not None:
            return None
        return windows.thresholds(sensitivity, self.settings.alpha)

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        return self._plan(self.widths, self._levels(layer, relevance, sensitivity))

    def _levels(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> NDArray[np.int64]:
        """Level of each window after the vote, [W]: 0 below T_low, 2 above T_high, else 1."""
        if self._budget_levels is not None:
            return self._budget_levels[layer].copy()
        found = self.thresholds(sensitivity)
        if found is None:
            raise ValueError("windowquant needs the sensitivity of the layer")
        low, high = found
        return windows.vote(np.where(relevance > high, 2, np.where(relevance < low, 0, 1)))

    def fit_budget(self, relevance: NDArray[np.float64], sensitivity: Sequence[float] | None, budget: Budget) -> None:
        """Same ranking, cut where the budget says (ours; the paper has alpha only).

        Every s_i is replaced by s_i ** g. From g = 0 (all windows at the lowest level) upwards the thresholds fall and
        each (layer, window) crosses T_low, then T_high, at a g that the inverses of eqs 10 and 11 give. The crossings
        are taken in that order until the next one would not fit; at one g, and where no g is enough (scores of 0 and
        below), the higher score comes first. Without s_i all layers count the same.
        """
        layers, count = budget.layers, relevance.shape[1]
        score = np.nan_to_num(relevance, nan=0.5).mean(axis=0)
        exponent = -np.log(np.clip(0.5 if sensitivity is None else np.array(sensitivity), 1e-6, 1 - 1e-6))
        exponent = np.broadcast_to(exponent, layers)[:, None]
        r, alphas = score.clip(0, 1), np.array([[self.settings.alpha], [-self.settings.alpha]])
        with np.errstate(divide="ignore"):
            # log(1 + r (e^a - 1)) / a for a and -a: exact at r = 0 and r = 1, and no alpha overflows.
            s = np.logaddexp(np.log1p(-r), np.log(r) + alphas) / alphas
            reached = -np.log(s.clip(0, 1))
        # The two are near each other at r = 1: rounding must not put T_high before T_low.
        crossings = np.maximum.accumulate(reached)[:, None] / exponent
        costs = [budget.window_bits(*pair) for pair in self.widths]
        fixed = 1 if self.settings.fixed_first_window and count else 0
        left = budget.total_bits - layers * (budget.tail_bits + fixed * budget.full_window_bits)
        left -= layers * (count - fixed) * costs[0]
        if left < 0:
            raise budget.too_small(budget.total_bits - left, self.settings.fixed_first_window)
        levels = np.zeros((layers, count), dtype=np.int64)
        steps = sorted(
            (float(crossings[step, layer, index]), step, -float(score[index]), layer, index)
            for step in range(2)
            for layer in range(layers)
            for index in range(fixed, count)
        )
        for _, step, _, layer, index in steps:
            extra = costs[step + 1] - costs[step]
            if extra > left:
                break
            levels[layer, index] = step + 1
            left -= extra
        self._budget_levels = levels


class Random(WindowQuant):
    """The paper's ablation B: WindowQuant's histogram of widths in each layer, dealt to windows at random (seeded)."""

    def _levels(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> NDArray[np.int64]:
        levels = super()._levels(layer, relevance, sensitivity)
        dealt = levels[1:] if self.settings.fixed_first_window else levels
        np.random.default_rng([self.settings.seed, layer]).shuffle(dealt)
        return levels
