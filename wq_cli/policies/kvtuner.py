"""KVTuner (arXiv 2502.04420): a pair of widths for the keys and values of every layer, chosen beforehand.

Of the pairs of 8, 4 and 2 bits each layer gets one, so that a model loses least at a mean width of at most `cap`. Two
base modes: KIVI's axes (keys per channel, values per token) and both per token.

Our reading: where the authors search with NSGA-II for accuracy on a handful of questions, what a layer's pair costs is
measured alone, as the KL to full precision over the answers to a few clips (`wq calibrate --policy kvtuner`); these
costs are added up and the best choice under the cap is found exactly. Every token is quantized once. Presets give all
layers one of the pairs that most often survive the authors' pruning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from wq_cli.errors import UsageError, WqError
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wq_cli.codecs import LayerCodec
    from wq_cli.config import Quantization
    from wq_cli.offline import Numbers

PAIRS = tuple((key, value) for key in (8, 4, 2) for value in (8, 4, 2))
PRESETS = {"kv8": (8, 8), "k8v4": (8, 4), "kv4": (4, 4), "k4v2": (4, 2), "kv2": (2, 2)}


@dataclass(frozen=True)
class KvTunerOptions(Options):
    """Options of `kvtuner`.

    Attributes:
        cap: Highest mean width of keys and values over all layers, metadata not counted.
        pairs: `search` for the layers' own, or the same pair for all.
        axes: Keys per channel and values per token, or both per token.
        group: Channels that share a scale where it is one per token.
    """

    cap: float = 4.0
    pairs: Literal["search", "kv8", "k8v4", "kv4", "k4v2", "kv2"] = "search"
    axes: Literal["kivi", "token"] = "kivi"
    group: int = 32

    def __post_init__(self) -> None:
        if self.cap < 2 or self.group < 1:
            raise UsageError("`cap` of `kvtuner` must be 2 or more and `group` positive")


class KvTuner(Policy):
    """See the module."""

    options_type = KvTunerOptions
    options: KvTunerOptions

    def __init__(self, settings: Quantization) -> None:
        super().__init__(settings)
        self._pairs: list[tuple[int, int]] | None = None

    @property
    def needs_numbers(self) -> bool:
        return self.options.pairs == "search"

    def told(self, numbers: Numbers) -> None:
        """
        Raises:
            WqError: The numbers are not those of `wq calibrate --policy kvtuner`.
        """
        costs = np.array(numbers.get(self.options.axes, []), dtype=np.float64)
        if costs.ndim != 2 or costs.shape[1] != len(PAIRS):
            raise WqError("what was measured for `kvtuner` is incomplete", "again: `wq calibrate --policy kvtuner`")
        self._pairs = cheapest(costs, self.options.cap)

    def coding(self) -> LayerCodec:
        from wq_cli.blocks import TokenQuantizer
        from wq_cli.codecs import ChannelInWindow, LayerCodec, PerToken

        per_token = PerToken(self.settings.window, TokenQuantizer(group=self.options.group))
        per_channel = ChannelInWindow(self.settings.window)
        return LayerCodec(per_channel if self.options.axes == "kivi" else per_token, per_token)

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        if self.options.pairs != "search":
            return self._same_width(relevance.shape[1], *PRESETS[self.options.pairs])
        if self._pairs is None:
            raise ValueError("kvtuner was told nothing of the layers")
        return self._same_width(relevance.shape[1], *self._pairs[layer])


def cheapest(costs: NDArray[np.float64], cap: float) -> list[tuple[int, int]]:
    """The pair of each layer with the least sum of costs under a mean width: dynamic programming over layers and bits.

    Args:
        costs: Of each layer with each of `PAIRS`, [L, 9].
        cap: Highest mean of key and value bits.
    """
    layers = len(costs)
    sizes = np.array([key + value for key, value in PAIRS])
    most = int(np.floor(2 * cap * layers + 1e-9))
    best = np.full(most + 1, np.inf)
    best[0] = 0.0
    came_by = np.zeros((layers, most + 1), dtype=np.int64)
    for layer in range(layers):
        options = np.full((len(PAIRS), most + 1), np.inf)
        for pair, size in enumerate(sizes):
            if size <= most:
                options[pair, size:] = best[: most + 1 - size] + costs[layer, pair]
        came_by[layer] = options.argmin(axis=0)
        best = options.min(axis=0)
    spent, chosen = int(best.argmin()), []
    for layer in reversed(range(layers)):
        pair = int(came_by[layer, spent])
        chosen.append(PAIRS[pair])
        spent -= int(sizes[pair])
    return chosen[::-1]
