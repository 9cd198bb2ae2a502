"""MixKVQ (arXiv 2512.19206): key channels get 16, 4 or 2 bits by what their error does to the scores of queries.

The error of a score is sum_d Q_d e_d, so a channel counts by A_d = I_d S_d with I_d = mean |Q_d| and S_d = (max k_d -
min k_d) / (2^B - 1). A > tau_16 stays at full precision, A > tau_4 gets 4 bits, the rest 2; values get 2 bits per
token. Tiers are chosen anew for every R tokens; the last ones stay at full precision as in KIVI.

Our reading, no code being published: B = 2, I_d is the mean over the query heads of a KV head and over the question's
own tokens, which decide what is asked. How many channels are in each tier is the same all over a layer, namely what the
thresholds give on average, so that a block of memory holds them; which ones they are differs by head and by R tokens.
Default thresholds are those of R1-Distill-Llama-8B; other models need others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from wq_cli.blocks import TokenQuantizer, TorchBlock, pack_digits, unpack_digits
from wq_cli.codecs import Codec, Coding, LayerCodec, PerToken
from wq_cli.errors import UsageError
from wq_cli.policies.base import FULL_PRECISION
from wq_cli.policies.kivi import Kivi, KiviOptions

if TYPE_CHECKING:
    from wq_cli.placement import VisualTokens
    from wq_kernels import Block


@dataclass(frozen=True)
class MixKvqOptions(KiviOptions):
    """Options of `mixkvq`, besides KIVI's.

    Attributes:
        tau_16: A above which a channel stays at full precision.
        tau_4: A above which it gets 4 bits.
    """

    tau_16: float = 1.44
    tau_4: float = 0.79

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.tau_4 <= self.tau_16:
            raise UsageError("`tau-4` of `mixkvq` must not be negative or above `tau-16`")


class MixKvq(Kivi):
    """See the module."""

    needs_queries: ClassVar[bool] = True
    needs_question: ClassVar[bool] = True
    options_type = MixKvqOptions
    options: MixKvqOptions

    def begin(self, visual: VisualTokens, decoder: Any) -> None:
        super().begin(visual, decoder)
        self._end = visual.end
        self._importance: dict[int, torch.Tensor] = {}

    def observe_queries(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        """I_d of the question's tokens; of the last R where there are none, [B, Hkv, D]."""
        asking = queries[:, :, self._end :] if self._end < queries.shape[2] else queries[:, :, -self.options.residual :]
        self._importance[layer] = asking.float().abs().unflatten(1, (keys.shape[1], -1)).mean(dim=(2, 3))

    def coding(self) -> Coding:
        return _MixKvqCoding(self)

    def take_importance(self, layer: int) -> torch.Tensor:
        """I_d, once."""
        return self._importance.pop(layer)


@dataclass(frozen=True)
class _MixKvqCoding(Coding):
    policy: MixKvq

    def of_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerCodec:
        options, window = self.policy.options, self.policy.settings.window
        importance = self.policy.take_importance(layer)
        windows = max(1, options.residual // window)
        return LayerCodec(
            ChannelTiers(window, importance, windows, options.tau_16, options.tau_4),
            PerToken(window, TokenQuantizer(group=options.group)),
        )


@dataclass(frozen=True)
class ChannelTiers(Codec):
    """Keys per channel inside a window, at a width of the channel's own.

    Attributes:
        window: Tokens per group.
        importance: I_d, [B, Hkv, D].
        tier_windows: Windows that share their tiers.
        tau_16, tau_4: See `MixKvqOptions`.
    """

    window: int
    importance: torch.Tensor
    tier_windows: int
    tau_16: float
    tau_4: float

    def encode(self, x: torch.Tensor, index: torch.Tensor, bits: int) -> Block | TorchBlock:
        from wq_kernels import pack

        if bits == FULL_PRECISION:
            return pack(x, index, bits=bits, window=self.window)
        tokens = x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
        groups = tokens.float().unflatten(2, (-1, self.window))
        counts = importances(groups, self.importance, self.tier_windows)
        sixteen = round(float((counts > self.tau_16).float().sum(dim=-1).mean()))
        four = round(float((counts > self.tau_4).float().sum(dim=-1).mean())) - sixteen
        order = counts.argsort(dim=-1, descending=True, stable=True)
        channels = _spread(order, groups.shape[2], self.tier_windows)
        ordered = groups.gather(-1, channels[:, :, :, None].expand(groups.shape))
        raw = ordered[..., :sixteen].flatten(2, 3).to(x.dtype)
        packed, pairs = [], []
        for part, levels in ((ordered[..., sixteen : sixteen + four], 16), (ordered[..., sixteen + four :], 4)):
            codes, pair = quantized(part, levels)
            packed.append(pack_digits(codes.flatten(2, 3), levels))
            pairs.append(pair)
        scale, minimum = (torch.cat([pair[i] for pair in pairs], dim=-1) for i in range(2))
        data = torch.cat(packed, dim=-1)
        kept_order = order.to(torch.uint8 if x.shape[3] <= 256 else torch.int16)
        return TierBlock(self.window, x.shape[3], data, raw, scale, minimum, kept_order, self.tier_windows, four)


def importances(groups: torch.Tensor, importance: torch.Tensor, tier_windows: int) -> torch.Tensor:
    """A_d of every stretch of windows: [B, Hkv, W, S, D] and I_d [B, Hkv, D] to [B, Hkv, R, D]."""
    parts = groups.split(tier_windows, dim=2)
    steps = torch.stack([part.amax(dim=(2, 3)) - part.amin(dim=(2, 3)) for part in parts], dim=2) / (2**2 - 1)
    return importance[:, :, None] * steps


def quantized(x: torch.Tensor, levels: int) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Codes uint8 [B, Hkv, W, S, n] and float16 scale and minimum [B, Hkv, W, n] of groups along S."""
    low, high = x.amin(dim=3), x.amax(dim=3)
    scale, minimum = ((high - low) / (levels - 1)).half(), low.half()
    step = torch.where(scale > 0, scale.float(), torch.inf)
    codes = ((x - minimum.float().unsqueeze(3)) / step.unsqueeze(3)).round().clamp(0, levels - 1)
    return codes.to(torch.uint8), (scale, minimum)


def _spread(order: torch.Tensor, windows: int, tier_windows: int) -> torch.Tensor:
    """The order of channels of every window: [B, Hkv, R, D] to int64 [B, Hkv, W, D]."""
    return order.long().repeat_interleave(tier_windows, dim=2)[:, :, :windows]


@dataclass(frozen=True)
class TierBlock(TorchBlock):
    """Keys whose channels, in an order of their own, lie in three tiers.

    Attributes:
        window: Tokens that share a scale.
        data: 4-bit codes of the second tier, then 2-bit codes of the third, uint8 [B, Hkv, T, C].
        raw: The first tier as it is, [B, Hkv, T, n_16].
        scale, minimum: Of the other two, float16 [B, Hkv, W, n_4 + n_2].
        order: Channels, those of the first tier first, [B, Hkv, R, D].
        tier_windows: Windows that share an order.
        four: n_4.
    """

    window: int
    channels: int
    data: torch.Tensor
    raw: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor
    order: torch.Tensor
    tier_windows: int
    four: int

    def read(self, dtype: torch.dtype) -> torch.Tensor:
        compute = torch.promote_types(dtype, torch.float32)
        bytes_of_four = -(-self.four // 2)
        two = self.channels - self.raw.shape[-1] - self.four
        parts = (
            unpack_digits(self.data[..., :bytes_of_four], 16, self.four),
            unpack_digits(self.data[..., bytes_of_four:], 4, two),
        )
        groups = torch.cat(parts, dim=-1).to(compute).unflatten(2, (-1, self.window))
        groups = groups * self.scale[:, :, :, None].to(compute) + self.minimum[:, :, :, None].to(compute)
        ordered = torch.cat([self.raw.to(compute), groups.flatten(2, 3)], dim=-1)
        order = _spread(self.order, self.scale.shape[2], self.tier_windows)
        index = order.repeat_interleave(self.window, dim=2)
        return torch.empty_like(ordered).scatter_(-1, index, ordered).to(dtype)

    def rows(self, index: torch.Tensor) -> Self:
        own = {name: getattr(self, name).index_select(0, index) for name in ("raw", "order")}
        return replace(super().rows(index), **own)
