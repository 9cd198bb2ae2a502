"""SmoothQuant (arXiv 2211.10438, equation 4) applied to the KV cache, as SKVQ and AKVQ-VL compare with it.

Channel j of the keys is divided by s_j = max|K_j|^a / max|Q_j|^(1-a) and the queries are multiplied by it; channel j of
the values by max|V_j|^a / max|W_O,j|^(1-a), and the output of attention is multiplied by it. Then every token is
quantized over the channels of each head.

Our reading: maxima are those of the request's own prompt, or with `calibrated` the means over a few clips, of all query
heads that share a KV head. Keys and queries are taken with their rotary position, which is exact where folding into the
weights is not. The method was made for activations at 8 bits; 2 bits are what it is compared at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from wq_cli.codecs import Coding, LayerCodec, PerToken
from wq_cli.errors import UsageError, WqError
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from wq_cli.offline import Numbers
    from wq_cli.placement import VisualTokens

MAXIMA = ("key_max", "value_low", "value_high", "query_max")
MIN_SCALE = 1e-5
REMEASURE = "again: `wq calibrate --policy smoothquant`"


@dataclass(frozen=True)
class SmoothQuantOptions(Options):
    """Options of `smoothquant`.

    Attributes:
        bits: Width of the codes.
        alpha: a, how much of the range moves over to queries and output weights; 1 moves all of it.
        group: Channels of all KV heads, in order, that share a scale; 0 is a head.
        calibrated: Whether maxima are those that `wq calibrate --policy smoothquant` measured; else the prompt's.
        key_centering: Whether the mean of every 32 keys is taken away first (not in the paper).
    """

    bits: Literal[8, 4, 2] = 2
    alpha: float = 0.5
    group: int = 0
    calibrated: bool = False
    key_centering: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise UsageError("`alpha` of `smoothquant` must lie in 0 to 1")
        if self.group < 0:
            raise UsageError("`group` of `smoothquant` must not be negative")


class SmoothQuant(Policy):
    """See the module."""

    needs_queries: ClassVar[bool] = True
    options_type = SmoothQuantOptions
    options: SmoothQuantOptions
    _measured: NDArray[np.float64] | None = None

    @property
    def needs_numbers(self) -> bool:
        return self.options.calibrated

    def told(self, numbers: Numbers) -> None:
        """
        Raises:
            WqError: The numbers are not those of `wq calibrate --policy smoothquant`.
        """
        found = {name: np.abs(np.array(numbers.get(name, []), dtype=np.float64)) for name in MAXIMA}
        if any(rows.ndim != 2 for rows in found.values()) or len({rows.shape for rows in found.values()}) > 1:
            raise WqError("what was measured for `smoothquant` is incomplete", REMEASURE)
        value_max = np.maximum(found["value_low"], found["value_high"])
        self._measured = np.stack([found["key_max"], value_max, found["query_max"]], axis=1)

    def begin(self, visual: VisualTokens, decoder: Any) -> None:
        """
        Raises:
            UsageError: The output weights are not kept as numbers.
        """
        self._layers = decoder.layers
        if not decoder.layers[0].self_attn.o_proj.weight.is_floating_point():
            raise UsageError("`smoothquant` looks at the output weights", "leave `--weights 4bit` away")
        self._query_max: dict[int, torch.Tensor] = {}

    def observe_queries(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        self._query_max[layer] = queries.abs().amax(dim=(0, 2))

    def coding(self) -> Coding:
        return SmoothCoding(self)

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        return self._same_width(relevance.shape[1], self.options.bits, self.options.bits)

    def maxima(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Largest |K_j|, |V_j|, and |Q_j| and |W_O,j| over the query heads of each KV head, [Hkv, D] each."""
        queries = self._query_max.pop(layer)
        weights = self._layers[layer].self_attn.o_proj.weight.detach().abs().amax(dim=0).view_as(queries)
        of_query, of_weight = (x.unflatten(0, (keys.shape[1], -1)).amax(dim=1) for x in (queries, weights))
        if self._measured is None:
            return keys.abs().amax(dim=(0, 2)), values.abs().amax(dim=(0, 2)), of_query, of_weight
        if self._measured.shape[2] != of_query.numel():
            channels = f"{self._measured.shape[2]} channels, the model has {of_query.numel()}"
            raise WqError(f"`smoothquant` was told of {channels}", REMEASURE)
        return *(of_query.new_tensor(row).view_as(of_query) for row in self._measured[layer]), of_weight


@dataclass(frozen=True)
class SmoothCoding(Coding):
    """Keys and values smoothed, then per token."""

    policy: SmoothQuant

    def of_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerCodec:
        from wq_cli.blocks import TokenQuantizer
        from wq_cli.transforms import Smoothing

        options = self.policy.options
        of_key, of_value, of_query, of_weight = self.policy.maxima(layer, keys, values)
        transform = Smoothing(
            smooth(of_key, of_query, options.alpha).to(keys.dtype),
            smooth(of_value, of_weight, options.alpha).to(values.dtype),
        )
        plain, window = TokenQuantizer(group=options.group), self.policy.settings.window
        centred = replace(plain, centred=options.key_centering)
        return LayerCodec(PerToken(window, centred), PerToken(window, plain), transform)


def smooth(own_max: torch.Tensor, other_max: torch.Tensor, alpha: float) -> torch.Tensor:
    """s_j of every channel, in float32.

    Args:
        own_max: Largest absolute value of keys or values, [Hkv, D].
        other_max: That of what they are multiplied with, [Hkv, D].
        alpha: a.
    """
    scale = own_max.float() ** alpha / other_max.float().clamp(min=MIN_SCALE) ** (1 - alpha)
    return scale.clamp(min=MIN_SCALE)
