"""AKVQ-VL (arXiv 2501.15021): rotated keys and values per token at 2 bits; pivots and the latest tokens are kept.

Keys, queries and values are multiplied by a Walsh-Hadamard matrix after the rotary position, so that no
channel stands out; then each token of each head is one group, whose range is multiplied by 0.8. In layers that attend
to text (TSA) visual tokens get 2 bits but for the 128 latest; in layers that attend to a few pivots (PSA) the 15 tokens
with massive activations stay at full precision too.

Our reading: the paper names no layer and no threshold for pivots. Here they are the visual tokens with the largest
absolute value in the residual stream that enters layer `pivot_layer`, so that layers before it have none. TSA layers
are the first `tsa_layers`, as the paper finds for LLaVA-v1.5. Values are rotated when they are stored, not by fused
weights, which is the same. Text, which the paper gives 4 or 2 bits, and what follows the prompt stay at full precision
as for every policy here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wq_cli.codecs import Coding, LayerCodec, PerToken
from wq_cli.errors import UsageError
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.ends import Ends
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from wq_cli.placement import VisualTokens

BITS = 2


@dataclass(frozen=True)
class AkvqOptions(Options):
    """Options of `akvq-vl`.

    Attributes:
        pivots: Pivot tokens of a PSA layer.
        recent: Tokens at the end of the prompt that stay at full precision.
        tsa_layers: The first layers, which have no pivots.
        pivot_layer: The layer whose input shows them.
        clip: Factor on both ends of a group's range.
        rotate: Whether keys and values are rotated.
        key_centering: Whether the mean of every 32 keys is taken away first (not in the paper).
    """

    pivots: int = 15
    recent: int = 128
    tsa_layers: int = 2
    pivot_layer: int = 2
    clip: float = 0.8
    rotate: bool = True
    key_centering: bool = False

    def __post_init__(self) -> None:
        if min(self.pivots, self.recent, self.tsa_layers) < 0:
            raise UsageError("`pivots`, `recent` and `tsa_layers` of `akvq-vl` must not be negative")
        if self.pivot_layer < 1:
            raise UsageError("`pivot_layer` of `akvq-vl` must be at least 1: the first layer has no earlier stream")
        if not 0 < self.clip <= 1:
            raise UsageError("`clip` of `akvq-vl` must lie in 0 to 1")


class AkvqVl(Policy):
    """See the module."""

    needs_stream: ClassVar[bool] = True
    options_type = AkvqOptions
    options: AkvqOptions

    def begin(self, visual: VisualTokens, decoder: Any) -> None:
        self._visual = visual
        self._ends = Ends.of(visual, 0, self.options.recent)
        self._pivots: NDArray[np.int64] | None = None

    def observe(self, layer: int, stream: torch.Tensor) -> None:
        if layer + 1 == self.options.pivot_layer:
            old = self._ends.tokens - self._ends.last
            positions = self._visual.to(stream.device).positions[:, :old]
            largest = stream.abs().amax(dim=-1).gather(1, positions)
            self._pivots = largest.topk(min(self.options.pivots, old), dim=1).indices.cpu().numpy()

    def coding(self) -> Coding:
        return AkvqCoding(self.options)

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        return self._ends.plan(BITS, BITS, None if layer < self.options.tsa_layers else self._pivots)


@dataclass(frozen=True)
class AkvqCoding(Coding):
    """One group for each token and head, in rotated coordinates."""

    options: AkvqOptions

    def of_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerCodec:
        from wq_cli.blocks import TokenQuantizer
        from wq_cli.transforms import Rotation, hadamard

        channels = keys.shape[3]
        rotation = Rotation(hadamard(channels).to(keys)) if self.options.rotate else None
        plain = TokenQuantizer(clip=self.options.clip, zero_point="integer")
        centred = replace(plain, centred=self.options.key_centering)
        return LayerCodec(PerToken(1, centred), PerToken(1, plain), rotation)
