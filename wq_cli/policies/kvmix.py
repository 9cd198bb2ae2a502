"""KVmix (arXiv 2506.08018): layers whose key and value weights have the larger loss gradients get more bits.

Layers are ranked by the L2 norm of the loss gradient of `k_proj` and of `v_proj`, averaged over prompts, keys and
values apart. Of each ranking the first fifth gets 3 bits for its keys and 4 for its values, the others 2. Keys are
quantized per channel over 32 tokens, values per token over 32 channels.

Our reading: the loss is that of the model's own full-precision answers to a few clips (`wq calibrate --policy kvmix`).
3 bits are stored as 4, and count as such. The recent tokens that the paper keeps at full precision wear off within a
few steps; what follows the video stays here as for every policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from wq_cli.errors import UsageError, WqError
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wq_cli.codecs import LayerCodec
    from wq_cli.offline import Numbers

NAMES = ("key_gradient", "value_gradient")


@dataclass(frozen=True)
class KvMixOptions(Options):
    """Options of `kvmix`.

    Attributes:
        share: Of the layers, that get more bits.
        key_bits, value_bits: What they get.
        bits: What the others get.
        group: Channels of a value that share a scale.
    """

    share: float = 0.2
    key_bits: Literal[4, 8] = 4
    value_bits: Literal[4, 8] = 4
    bits: Literal[2, 4] = 2
    group: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1 or self.group < 1:
            raise UsageError("`share` of `kvmix` must lie in 0 to 1 and `group` be positive")


class KvMix(Policy):
    """See the module."""

    options_type = KvMixOptions
    options: KvMixOptions

    @property
    def needs_numbers(self) -> bool:
        return True

    def told(self, numbers: Numbers) -> None:
        """
        Raises:
            WqError: The numbers are not those of `wq calibrate --policy kvmix`.
        """
        norms = [np.array(numbers.get(name, []), dtype=np.float64) for name in NAMES]
        if any(norm.ndim != 1 or not len(norm) for norm in norms):
            raise WqError("what was measured for `kvmix` is incomplete", "again: `wq calibrate --policy kvmix`")
        self._important = [largest(norm, self.options.share) for norm in norms]

    def coding(self) -> LayerCodec:
        from wq_cli.blocks import TokenQuantizer
        from wq_cli.codecs import ChannelInWindow, LayerCodec, PerToken

        window = self.settings.window
        return LayerCodec(ChannelInWindow(window), PerToken(window, TokenQuantizer(group=self.options.group)))

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        more, keys, values = (self.options.key_bits, self.options.value_bits), *self._important
        key_bits = more[0] if layer in keys else self.options.bits
        value_bits = more[1] if layer in values else self.options.bits
        return self._same_width(relevance.shape[1], key_bits, value_bits)


def largest(norms: Sequence[float] | NDArray[np.float64], share: float) -> frozenset[int]:
    """The layers with the largest norms, that share of all rounded down, as the authors' code does."""
    count = int(len(norms) * share)
    return frozenset(np.argsort(-np.asarray(norms), kind="stable")[:count].tolist())
