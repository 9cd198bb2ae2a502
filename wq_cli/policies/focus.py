"""Focus: bits where a question's answer would miss them. Ours.

It keeps WindowQuant's idea, that windows matter as much as the question is about them, and changes what follows from
it, in the same stored format:

- Relevance of a window is the attention that the question's own tokens pay it in the prefill, layer by layer, which is
  there for the taking. `relevance=similarity` keeps eq 8.
- Keys and values have widths of their own. A width of b bits leaves a squared error of about 4^-b; a window's counts by
  its relevance, a key's as `key_weight` times a value's. Every layer
  spends its bits where they take away most of the sum (optimal bit allocation; Shoham and Gersho 1988).
- Groups are twice WindowQuant's, so that scales and minima cost half a bit.
- Scales, minima and codes are fitted to the question's queries and attention (`wq_cli.fitting`).
- The first window has 8 bits and not 16.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from wq_cli.codecs import ChannelInWindow, Coding, LayerCodec
from wq_cli.errors import UsageError
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from wq_cli.config import Quantization
    from wq_cli.placement import VisualTokens
    from wq_cli.policies.base import Budget

WIDTHS = (2, 4, 8, 16)
FIRST_WINDOW_BITS = 8
# What a window that the question passes over counts, against one of mean relevance: its answer may look elsewhere.
LEAST_RELEVANCE = 1.0
MODEL_BITS = 16


@dataclass(frozen=True)
class FocusOptions(Options):
    """Options of `focus`.

    Attributes:
        window: S, in place of `--window`.
        bits: Average bits of the quantized windows where there is no budget, scales and minima included.
        key_weight: How much the error of a key counts against that of a value.
        relevance: What says how much a window matters.
    """

    window: int = 64
    bits: float = 3.25
    key_weight: float = 4.0
    relevance: Literal["attention", "similarity"] = "attention"

    def __post_init__(self) -> None:
        if self.window < 1 or self.bits <= 0 or self.key_weight <= 0:
            raise UsageError("`window`, `bits` and `key-weight` of `focus` must be positive")


class Focus(Policy):
    """See the module."""

    needs_scores: ClassVar[bool] = True
    needs_queries: ClassVar[bool] = True
    needs_question: ClassVar[bool] = True
    options_type = FocusOptions
    options: FocusOptions

    def __init__(self, settings: Quantization) -> None:
        super().__init__(settings)
        self.settings = replace(settings, window=self.options.window)
        self._windows_bits: float | None = None
        self._looks: dict[int, Look] = {}

    def begin(self, visual: VisualTokens, decoder: Any) -> None:
        self._visual = visual

    def observe_queries(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        self._looks[layer] = look(queries, keys, self._visual)

    def coding(self) -> Coding:
        return _FocusCoding(self)

    def window_bits(self, key_bits: int, value_bits: int, full_bits: int) -> float:
        codec = ChannelInWindow(self.settings.window)
        return codec.window_bits(key_bits, full_bits) + codec.window_bits(value_bits, full_bits)

    def fit_budget(self, relevance: NDArray[np.float64], sensitivity: Sequence[float] | None, budget: Budget) -> None:
        """Every layer gets an equal share: it is sealed before the next one ran."""
        of_layer = budget.total_bits / budget.layers - budget.tail_bits
        fixed = self._fixed(relevance.shape[1])
        least = fixed * self.window_bits(FIRST_WINDOW_BITS, FIRST_WINDOW_BITS, MODEL_BITS)
        least += (relevance.shape[1] - fixed) * self.window_bits(WIDTHS[0], WIDTHS[0], MODEL_BITS)
        if of_layer < least:
            raise budget.too_small(budget.layers * (least + budget.tail_bits))
        self._windows_bits = of_layer

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        count, fixed = relevance.shape[1], self._fixed(relevance.shape[1])
        if self.options.relevance == "attention" and layer in self._looks:
            matters = self._looks[layer].of_windows(self._visual).mean(dim=0).double().cpu().numpy()
        else:
            matters = np.nan_to_num(relevance, nan=0.5).clip(0).mean(axis=0)
        first = self.window_bits(FIRST_WINDOW_BITS, FIRST_WINDOW_BITS, MODEL_BITS)
        room = self._windows_bits
        if room is None:
            room = fixed * first + (count - fixed) * 2 * self.settings.window * self.options.bits
        bits = spend(matters[fixed:], room - fixed * first, self.settings.window, self.options.key_weight)
        bits = np.concatenate([np.full((fixed, 2), FIRST_WINDOW_BITS), bits])
        return LayerPlan(bits[:, 0], bits[:, 1])

    def take_look(self, layer: int) -> Look:
        """What was seen of a layer, once."""
        return self._looks.pop(layer)

    def _fixed(self, windows: int) -> int:
        return int(self.settings.fixed_first_window and windows > 0)


def spend(matters: NDArray[np.float64], room: float, window: int, key_weight: float) -> NDArray[np.int64]:
    """Widths of the keys and values of a layer's windows.

    Args:
        matters: How much each window does, [W], not negative.
        room: Bits for all of them, per channel and KV head.
        window: S.
        key_weight: How much the error of a key counts against that of a value.

    Returns:
        [W, 2]. From the lowest width up, the steps with the most error taken away per bit, until one does not fit.
    """
    codec = ChannelInWindow(window)
    costs = np.array([codec.window_bits(bits, MODEL_BITS) for bits in WIDTHS])
    gains = -np.diff(4.0 ** -np.array(WIDTHS)) / np.diff(costs)
    share = matters / max(matters.mean(), np.finfo(np.float64).tiny) if len(matters) else matters
    sides = np.array([key_weight, 1.0])
    value = (share + LEAST_RELEVANCE)[:, None, None] * sides[:, None] * gains
    order = np.argsort(-value, axis=None, kind="stable")
    spent = np.cumsum(np.broadcast_to(np.diff(costs), value.shape).ravel()[order])
    taken = np.zeros(value.size, dtype=np.int64)
    taken[order[spent <= room - 2 * len(matters) * costs[0]]] = 1
    levels = taken.reshape(value.shape).sum(axis=2)
    return np.array(WIDTHS)[levels]


@dataclass(frozen=True)
class Look:
    """How the question looks at a layer.

    Attributes:
        attention: What its tokens pay to every token before them, the mean over them and over query heads,
            [B, Hkv, L].
        strength: Root mean square of the same.
        moment: Second moment of their queries, [B, Hkv, D, D].
    """

    attention: torch.Tensor
    strength: torch.Tensor
    moment: torch.Tensor

    def of_windows(self, visual: VisualTokens) -> torch.Tensor:
        """Attention that each window gets from all heads, [B, W]."""
        tokens = self.attention.mean(dim=1).gather(1, visual.positions.to(self.attention.device))
        return tokens[:, : visual.windows * visual.window].unflatten(1, (-1, visual.window)).sum(dim=-1)


def look(queries: torch.Tensor, keys: torch.Tensor, visual: VisualTokens) -> Look:
    """What the tokens behind the last visual one ask for; the last window's where there are none.

    Args:
        queries: [B, Hq, L, D].
        keys: [B, Hkv, L, D].
        visual: Where the visual tokens are.
    """
    import torch

    length, heads = keys.shape[2], keys.shape[1]
    end = int(visual.positions.max()) + 1 if visual.positions.shape[1] else 0
    asking = queries[:, :, end:] if end < length else queries[:, :, -visual.window :]
    rows = asking.float().unflatten(1, (heads, -1)).flatten(2, 3)
    scores = rows @ keys.float().mT * keys.shape[-1] ** -0.5
    hidden = torch.arange(length, device=keys.device) >= end
    if visual.padding is not None:
        padding = torch.nn.functional.pad(visual.padding.to(keys.device), (0, length - visual.length), value=True)
        hidden = hidden | ~padding[:, None, None]
    weights = scores.masked_fill_(hidden, -torch.inf).softmax(dim=-1)
    moment = rows.mT @ rows / rows.shape[2]
    return Look(weights.mean(dim=2), weights.square().mean(dim=2).sqrt(), moment)


@dataclass(frozen=True)
class _FocusCoding(Coding):
    """Keys and values fitted to how the question looks at their layer."""

    policy: Focus

    def of_layer(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> LayerCodec:
        from wq_cli.fitting import FittedChannelInWindow

        seen, window = self.policy.take_look(layer), self.policy.settings.window
        return LayerCodec(
            FittedChannelInWindow(window, seen.strength, seen.moment), FittedChannelInWindow(window, seen.strength)
        )
