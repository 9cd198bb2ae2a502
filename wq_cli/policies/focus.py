"""Focus: bits where a question's answer would miss them. Ours.

It keeps WindowQuant's idea, that windows matter as much as the question is about them, and changes what follows from
it, in the same stored format:

- Relevance of a window is the attention that the question's own tokens pay it in the prefill, layer by layer, which is
  there for the taking. `relevance=similarity` keeps eq 8.
- Keys and values have widths of their own. A width of b bits leaves a squared error of about 4^-b, which counts by its
  window's relevance and its side's worth. A layer spends its bits where they take away most of the sum (optimal bit
  allocation; Shoham and Gersho 1988). The first window is like any other.
- What keys and values of a layer are worth, and so what share of all bits the layer gets, `wq calibrate --policy focus`
  measures. Where nobody did, a key is worth `key_weight` values and every layer gets the same.
- Groups are twice WindowQuant's, so that scales and minima cost half a bit.
- Scales, minima and codes are fitted to the question's queries and attention (`wq_cli.fitting`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from wq_cli.codecs import ChannelInWindow, Coding, LayerCodec
from wq_cli.errors import UsageError, WqError
from wq_cli.policies.base import LayerPlan, Policy
from wq_cli.policies.options import Options

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from wq_cli.config import Quantization
    from wq_cli.device import HostCopy
    from wq_cli.offline import Numbers
    from wq_cli.placement import VisualTokens
    from wq_cli.policies.base import Budget

WIDTHS = (2, 4, 8, 16)
# What full precision takes where no budget says it: plans without one are those of half precision.
HALF_BITS = 16
# What a window that the question passes over counts, against one of mean relevance: its answer may look elsewhere.
LEAST_RELEVANCE = 1.0
# A few prompts make layers differ more than they do over many.
MEASURED_POWER = 0.85
# What is measured of every layer: share of the KL where its keys or its values alone have the lowest width.
SIDES = ("key", "value")


@dataclass(frozen=True)
class FocusOptions(Options):
    """Options of `focus`.

    Attributes:
        window: S, in place of `--window`.
        bits: Average bits of the quantized windows where there is no budget, scales and minima included.
        key_weight: How much the error of a key counts against that of a value where nothing was measured.
        relevance: What says how much a window matters.
        layers: `auto` for what was measured of the model, where it was; `equal` treats all layers alike.
    """

    window: int = 64
    bits: float = 3.25
    key_weight: float = 4.0
    relevance: Literal["attention", "similarity"] = "attention"
    layers: Literal["auto", "equal"] = "auto"

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
        self.settings = replace(settings, window=self.options.window, fixed_first_window=False)
        self._layer_bits: float | None = None
        self._full_bits = HALF_BITS
        self._measured: NDArray[np.float64] | None = None
        self._shares: NDArray[np.float64] | None = None
        self._unspent = 0.0
        self._looks: dict[int, Look] = {}
        self._attention: dict[int, HostCopy] = {}

    @property
    def takes_numbers(self) -> bool:
        return self.options.layers == "auto"

    def told(self, numbers: Numbers) -> None:
        """
        Raises:
            WqError: The numbers are not those of `wq calibrate --policy focus`.
        """
        sides = [np.array(numbers.get(side, []), dtype=np.float64) for side in SIDES]
        if any(x.ndim != 1 or not len(x) or (x < 0).any() for x in sides):
            raise WqError("what was measured for `focus` is incomplete", "again: `wq calibrate --policy focus`")
        self._measured = np.stack(sides, axis=1) ** MEASURED_POWER

    def begin(self, visual: VisualTokens, decoder: Any) -> None:
        self._visual = visual

    def observe_queries(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        from wq_cli.device import HostCopy

        seen = look(queries, keys, self._visual)
        self._looks[layer] = seen
        if self.options.relevance == "attention":
            self._attention[layer] = HostCopy(seen.of_windows(self._visual).mean(dim=0))

    def wait(self, layer: int) -> None:
        if layer in self._attention:
            self._attention[layer].get()

    def coding(self) -> Coding:
        return _FocusCoding(self)

    def window_bits(self, key_bits: int, value_bits: int, full_bits: int) -> float:
        codec = ChannelInWindow(self.settings.window)
        return codec.window_bits(key_bits, full_bits) + codec.window_bits(value_bits, full_bits)

    def fit_budget(self, relevance: NDArray[np.float64], sensitivity: Sequence[float] | None, budget: Budget) -> None:
        of_layer = budget.total_bits / budget.layers - budget.tail_bits
        least = relevance.shape[1] * budget.window_bits(WIDTHS[0], WIDTHS[0])
        if of_layer < least:
            raise budget.too_small(budget.layers * (least + budget.tail_bits), self.settings.fixed_first_window)
        self._layer_bits = of_layer
        self._full_bits = round(budget.full_window_bits / (2 * self.settings.window))

    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        """What a layer leaves, less than one more step would cost, goes to the next."""
        count, window, full_bits = relevance.shape[1], self.settings.window, self._full_bits
        if layer in self._attention:
            matters = self._attention.pop(layer).get().double().numpy()
        else:
            matters = np.nan_to_num(relevance, nan=0.5).clip(0).mean(axis=0)
        worth, mean = np.array([self.options.key_weight, 1.0]), self._layer_bits
        if mean is None:
            mean = count * 2 * window * self.options.bits
        room = mean + self._unspent
        if self._measured is not None:
            if self._shares is None:
                self._shares = layer_shares(self._measured, mean / max(count, 1), window, full_bits)
            worth = self._measured[layer]
            room += count * self._shares[layer] - mean
        bits = spend(counted(matters)[:, None] * worth, room, window, full_bits)
        self._unspent = room - float(stored_bits(bits, window, full_bits).sum())
        return LayerPlan(bits[:, 0], bits[:, 1])

    def take_look(self, layer: int) -> Look:
        """What was seen of a layer, once."""
        return self._looks.pop(layer)


def counted(matters: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the errors of windows count by how much they matter, [W], not negative."""
    share = matters / max(matters.mean(), np.finfo(np.float64).tiny) if len(matters) else matters
    return share + LEAST_RELEVANCE


@functools.cache
def costs(window: int, full_bits: int) -> NDArray[np.int64]:
    """Bits of a window at each of `WIDTHS`, per channel and KV head, scales and minima included."""
    return np.array([ChannelInWindow(window).window_bits(bits, full_bits) for bits in WIDTHS])


@functools.cache
def steps(window: int, full_bits: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of each step from one of `WIDTHS` to the next: its bits, and the error that it takes away per bit."""
    bits = np.diff(costs(window, full_bits))
    return bits, -np.diff(4.0 ** -np.array(WIDTHS)) / bits


def stored_bits(widths: NDArray[np.int64], window: int, full_bits: int) -> NDArray[np.int64]:
    """The same of keys and values together, [..., 2] to [...]."""
    of_sides: NDArray[np.int64] = costs(window, full_bits)[np.searchsorted(WIDTHS, widths)]
    return of_sides.sum(axis=-1)


def spend(worth: NDArray[np.float64], room: float, window: int, full_bits: int = HALF_BITS) -> NDArray[np.int64]:
    """Widths of keys and values with the least sum of errors.

    Args:
        worth: How much the errors of the two sides of each window count, [W, 2].
        room: Bits for all of them, per channel and KV head.
        window: S.
        full_bits: Bits of the model's dtype.

    Returns:
        [W, 2]. From the lowest width up, the steps with the most error taken away per bit, until one does not fit.
    """
    if not worth.size:
        return np.zeros(worth.shape, dtype=np.int64)
    step_bits, step_gains = steps(window, full_bits)
    gains = (worth[:, :, None] * step_gains).ravel()
    bits, left = np.tile(step_bits, worth.size), room - worth.size * costs(window, full_bits)[0]
    # Equal gains come in any order here, since a stable sort takes four times as long; of the least that is taken, what
    # belongs to earlier windows goes first.
    order = np.argsort(-gains)
    fitting = int(np.searchsorted(np.cumsum(bits[order]), left, side="right"))
    least = gains[order[min(fitting, gains.size - 1)]]
    taken = gains > least
    tied = np.flatnonzero(gains == least)
    taken[tied] = np.cumsum(bits[tied]) <= left - bits[taken].sum()
    return np.array(WIDTHS)[taken.reshape(*worth.shape, -1).sum(axis=2)]


def layer_shares(
    measured: NDArray[np.float64], mean: float, window: int, full_bits: int = HALF_BITS
) -> NDArray[np.float64]:
    """Bits for a window of each layer, as if all windows mattered alike.

    Args:
        measured: What the two sides of each layer are worth, [L, 2].
        mean: Bits for a window in the mean layer, per channel and KV head.
        window: S.
        full_bits: Bits of the model's dtype.

    Returns:
        [L], with that mean; what does not suffice for one more step of any layer is spread over all.
    """
    bits = stored_bits(spend(measured, mean * len(measured), window, full_bits), window, full_bits)
    return bits + (mean - bits.mean())


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

    length, heads, end = keys.shape[2], keys.shape[1], visual.end
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
        from wq_cli.fitting import FittedChannelInWindow, variance_in_windows
        from wq_kernels import Compensation

        seen, visual = self.policy.take_look(layer), self.policy._visual
        compensation = Compensation.of(seen.moment, variance_in_windows(keys, visual))
        return LayerCodec(
            FittedChannelInWindow(visual.window, seen.strength, compensation),
            FittedChannelInWindow(visual.window, seen.strength),
        )
