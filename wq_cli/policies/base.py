"""What a policy is: scores and layer statistics in, widths per window out, nothing of how numbers are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from wq_cli.errors import BudgetError, UsageError
from wq_cli.policies.options import Options, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from numpy.typing import NDArray

    from wq_cli.codecs import Coding
    from wq_cli.config import Quantization
    from wq_cli.offline import Numbers
    from wq_cli.placement import VisualTokens

FULL_PRECISION = 16


@dataclass(frozen=True)
class LayerPlan:
    """Widths of one layer's windows: bits of the keys and of the values, [W] each. 16 is the model's own dtype.

    Attributes:
        kept: Visual tokens, counted from 0, that stay at full precision out of whatever window they are in, [B, K];
            None for none. Every row must keep equally many of the windows of one pair of widths.
    """

    key_bits: NDArray[np.int64]
    value_bits: NDArray[np.int64]
    kept: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.key_bits.shape != self.value_bits.shape:
            raise ValueError(
                f"key widths {self.key_bits.shape} and value widths {self.value_bits.shape} differ in shape"
            )

    @property
    def windows(self) -> int:
        return len(self.key_bits)


@dataclass(frozen=True)
class Budget:
    """Room for the visual tokens of one request, in bits per channel and KV head, keys and values together.

    Attributes:
        total_bits: What all layers may take.
        layers: Number of decoder layers.
        tail_bits: What the tail takes in one layer.
        full_window_bits: What one window at full precision takes in one layer.
        window_bits: The same for a window at (key bits, value bits), metadata included.
        elements: Stored elements per channel and KV head in all layers, to speak of average bits.
    """

    total_bits: float
    layers: int
    tail_bits: float
    full_window_bits: float
    window_bits: Callable[[int, int], float]
    elements: int

    def too_small(self, needed_bits: float, fixed_first_window: bool) -> BudgetError:
        """The error for a budget below the lowest widths of a policy, which may have fixed the first window."""
        asked, least = self.total_bits / self.elements, needed_bits / self.elements
        by = (
            "`--no-fixed-first-window` needs less, `--kv-memory` less"
            if fixed_first_window
            else "`--kv-memory` needs less"
        )
        return BudgetError(
            f"the budget leaves `{max(asked, 0):.2f}` bits per visual element, the policy needs at least `{least:.2f}`",
            f"raise it; {by} with fewer frames or a shorter answer",
        )


class Policy(ABC):
    """Decides the widths of one layer after the other.

    A policy is made once per request (or batch). `plan_layer` may be called as soon as a layer ran, so that the layer
    can be sealed before the next one.

    Attributes:
        needs_scores: Whether `relevance` is looked at; without it the search is skipped.
        needs_sensitivity: Whether s_i (eq 9) is looked at; it is measured in the prefill when the profile has none.
        needs_numbers: Whether `told` is called with what `wq calibrate --policy` measured of the model.
        takes_numbers: Whether it is where that was measured, and is not missed where it was not.
        needs_queries: Whether `observe_queries` is called.
        needs_question: Whether the queries must hold those of the question: where it is asked after the cache was
            sealed, the prefill runs over it too and then forgets it.
        needs_stream: Whether `observe` looks at the stream.
        options_type: What may be written behind the policy's name (`policies.options`).
        options: What was.
    """

    needs_scores: ClassVar[bool] = False
    needs_sensitivity: ClassVar[bool] = False
    needs_queries: ClassVar[bool] = False
    needs_question: ClassVar[bool] = False
    needs_stream: ClassVar[bool] = False
    options_type: ClassVar[type[Options]] = Options

    def __init__(self, settings: Quantization) -> None:
        self.settings = settings
        self.options = parse(self.options_type, settings.policy)

    @property
    def needs_numbers(self) -> bool:
        return False

    @property
    def takes_numbers(self) -> bool:
        return False

    def told(self, numbers: Numbers) -> None:
        """Told once, before anything else, what was measured of the model beforehand.

        Raises:
            WqError: The numbers are not what the policy needs.
        """
        raise NotImplementedError

    def begin(self, visual: VisualTokens, decoder: Any) -> None:  # noqa: B027 - most policies have nothing to ask
        """Told once of the prompts, before anything else.

        Args:
            visual: Where their visual tokens are.
            decoder: The language model that will run them; its `layers` are in order.
        """

    def place(self, positions: torch.Tensor) -> None:  # noqa: B027 - most policies have nothing to rotate
        """Told once of the rotary positions of the prompts, int64 [B, L] or [3, B, L], after `begin`."""

    def observe_queries(self, layer: int, queries: torch.Tensor, keys: torch.Tensor) -> None:
        """Told of a layer's queries in the prefill, [B, Hq, L, D], and its keys, [B, Hkv, L, D], rotary position
        applied, before it is planned."""
        raise NotImplementedError

    def observe(self, layer: int, stream: torch.Tensor) -> None:  # noqa: B027 - most policies have nothing to look at
        """Told of the residual stream that leaves a layer, [B, L, D], after this layer was planned."""

    def coding(self) -> Coding:
        """How what was planned is stored."""
        from wq_cli.codecs import ChannelInWindow

        return ChannelInWindow(self.settings.window, self.settings.zero_point)

    def window_bits(self, key_bits: int, value_bits: int, full_bits: int) -> float:
        """Bits that one window takes per channel and KV head, for budgets.

        Args:
            key_bits, value_bits: Widths; 16 means full precision.
            full_bits: Bits of the model's dtype.
        """
        from wq_cli.codecs import ChannelInWindow

        codec = ChannelInWindow(self.settings.window)
        return codec.window_bits(key_bits, full_bits) + codec.window_bits(value_bits, full_bits)

    def wait(self, layer: int) -> None:  # noqa: B027 - most policies wait for nothing
        """Called before `plan_layer`: until what it looks at of the layer has come from the device."""

    @abstractmethod
    def plan_layer(self, layer: int, relevance: NDArray[np.float64], sensitivity: float | None) -> LayerPlan:
        """Widths of one layer.

        Args:
            layer: Index of the decoder layer.
            relevance: Scaled similarity of each request's windows, [B, W]; NaN where a window takes no part.
            sensitivity: s_i of this layer in [0, 1], or None when not needed.

        Returns:
            One plan for the whole batch.
        """

    def plans_ahead(self, sensitivity: Sequence[float] | None) -> bool:
        """Whether plans wait for nothing that the prefill shows.

        Then all layers are planned before the first is sealed. That takes a fraction of the time: between layers the
        host has other things to do, which leave nothing of a policy in its caches.

        Args:
            sensitivity: Calibrated s_i of every layer; None measures them.
        """
        measures = self.needs_sensitivity and sensitivity is None
        return not (measures or self.needs_queries or self.needs_stream)

    def thresholds(self, sensitivity: float | None) -> tuple[float, float] | None:
        """(T_low, T_high) that `plan_layer` compares with, where the policy has such a thing."""
        return None

    def fit_budget(self, relevance: NDArray[np.float64], sensitivity: Sequence[float] | None, budget: Budget) -> None:
        """Make `plan_layer` spend at most `budget`, whatever the thresholds say.

        Args:
            relevance: As in `plan_layer`.
            sensitivity: s_i of every layer where the profile has them.
            budget: Room for the visual tokens.

        Raises:
            UsageError: The policy has nothing to choose.
            BudgetError: Even its lowest widths do not fit.
        """
        raise UsageError(
            f"`--bits` and `--kv-memory` need a policy that ranks windows, `{self.settings.policy}` does not"
        )

    def _same_width(self, windows: int, key_bits: int, value_bits: int) -> LayerPlan:
        """One width for the keys and one for the values of all windows, whatever the settings fix."""
        return LayerPlan(np.full(windows, key_bits), np.full(windows, value_bits))

    def _plan(self, widths: Sequence[tuple[int, int]], levels: NDArray[np.int64]) -> LayerPlan:
        """Levels to widths, the first window at full precision when the settings fix it.

        Args:
            widths: (key bits, value bits) of each level, lowest level first.
            levels: Level of each window, [W].
        """
        bits = np.array(widths, dtype=np.int64).take(levels, axis=0)
        if self.settings.fixed_first_window:
            bits[:1] = FULL_PRECISION
        return LayerPlan(bits[:, 0], bits[:, 1])
