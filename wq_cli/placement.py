"""Where tokens stand in a prompt, and where those of a layer go in storage by its plan. Index arithmetic only."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from wq_cli.device import to_device
from wq_cli.policies.base import FULL_PRECISION

if TYPE_CHECKING:
    from wq_cli.policies.base import LayerPlan


@dataclass(frozen=True)
class VisualTokens:
    """Where the visual tokens of a batch stand in its prompts.

    Attributes:
        positions: Position of every visual token in its prompt, ascending, int64 [B, M].
        text: Position of every other token of the prefilled prompt, ascending, int64 [B, L - M].
        window: S. The last M mod S visual tokens are the tail.
        padding: True for real tokens, False for padding, [B, L]; None without padding.
    """

    positions: torch.Tensor
    text: torch.Tensor
    window: int
    padding: torch.Tensor | None = None

    @classmethod
    def from_mask(cls, visual: torch.Tensor, window: int, padding: torch.Tensor | None = None) -> VisualTokens:
        """From a bool mask [B, L].

        Raises:
            ValueError: Rows with different numbers of visual tokens.
        """
        counts = visual.sum(dim=1)
        if (counts != counts[0]).any():
            raise ValueError(f"rows hold {counts.tolist()} visual tokens, a batch needs equal numbers")
        batch = visual.shape[0]
        positions = visual.nonzero()[:, 1].view(batch, -1)
        text = (~visual).nonzero()[:, 1].view(batch, -1)
        return cls(positions, text, window, padding)

    def to(self, device: torch.device) -> VisualTokens:
        """The same on another device, where some layers of a model may be."""
        if self.positions.device == device:
            return self
        padding = None if self.padding is None else self.padding.to(device)
        return replace(self, positions=self.positions.to(device), text=self.text.to(device), padding=padding)

    @property
    def windows(self) -> int:
        return self.positions.shape[1] // self.window

    @functools.cached_property
    def end(self) -> int:
        """Position after the last visual token of any row, which the host waits for once; 0 without one."""
        return int(self.positions.max()) + 1 if self.positions.shape[1] else 0

    @property
    def length(self) -> int:
        """L, tokens of the prompt."""
        return self.positions.shape[1] + self.text.shape[1]

    def repeated(self, rows: int) -> VisualTokens:
        """The same prompts in a batch of `rows`, each repeated side by side as a beam search does.

        Raises:
            ValueError: `rows` is not a multiple of the prompts.
        """
        times, rest = divmod(rows, self.positions.shape[0])
        if times == 0 or rest:
            raise ValueError(f"{rows} rows do not fit the visual tokens of {self.positions.shape[0]} prompts")
        tensors = {name: getattr(self, name) for name in ("positions", "text", "padding")}
        return replace(
            self, **{name: x.repeat_interleave(times, dim=0) for name, x in tensors.items() if x is not None}
        )

    def at(self, numbers: np.ndarray) -> torch.Tensor:
        """Positions of visual tokens by their numbers, counted from 0: [1 or prompts, n] to [B, n]."""
        index = to_device(torch.from_numpy(numbers), self.positions.device)
        return self.positions.gather(1, index.repeat_interleave(self.positions.shape[0] // len(index), dim=0))

    @property
    def tail(self) -> torch.Tensor:
        """Positions of the tail, [B, M mod S]."""
        return self.positions[:, self.windows * self.window :]


def storage_order(plan: LayerPlan, reorder: bool) -> tuple[list[tuple[int, int, np.ndarray]], np.ndarray]:
    """How a plan is laid out in memory.

    Args:
        plan: Widths of the windows.
        reorder: Windows of equal widths contiguous (module III of the paper); otherwise time order is kept and every
            change of width starts a segment.

    Returns:
        (key bits, value bits, windows) of each segment, and the windows that join the full-precision run.
        Invariant: together they are a permutation of all windows.
    """
    if not plan.windows:
        return [], np.arange(0)
    pairs = (plan.key_bits * (FULL_PRECISION + 1) + plan.value_bits).astype(np.int16)
    # Sorted once, the widest first: a stable sort of short integers takes a time proportional to their number.
    order = np.argsort(-pairs, kind="stable") if reorder else np.arange(plan.windows)
    runs = np.split(order, np.flatnonzero(np.diff(pairs[order])) + 1)
    segments = [(int(plan.key_bits[run[0]]), int(plan.value_bits[run[0]]), run) for run in runs]
    if reorder and segments[0][:2] == (FULL_PRECISION, FULL_PRECISION):
        return segments[1:], segments[0][2]
    return segments, np.arange(0)


@dataclass(frozen=True)
class Placement:
    """Where in its prompt every stored token of a layer comes from, by the layer's plan.

    Attributes:
        plan: It.
        segments: (key bits, value bits, positions [B, windows * S]) of each segment.
        run: Positions of the full-precision run, [B, T].
    """

    plan: LayerPlan
    segments: list[tuple[int, int, torch.Tensor]]
    run: torch.Tensor

    @classmethod
    def of(cls, plan: LayerPlan, visual: VisualTokens, reorder: bool) -> Placement:
        """One transfer to the device, which nothing waits for. See `storage_order`.

        Raises:
            ValueError: Rows keep different numbers of tokens of a segment.
        """
        order, raw_windows = storage_order(plan, reorder)
        parts = [_tokens(chosen, visual.window, plan.kept) for _, _, chosen in order]
        run = [_tokens(raw_windows, visual.window, None)]
        if plan.kept is not None:
            quantized = _tokens(np.concatenate([raw_windows[:0], *(w for _, _, w in order)]), visual.window, None)
            run = [run[0].repeat(len(plan.kept), axis=0), _rows([row[np.isin(row, quantized)] for row in plan.kept])]
        parts.append(np.concatenate(run, axis=1))
        rows = max(len(part) for part in parts)
        numbers = np.concatenate([part.repeat(rows // len(part), axis=0) for part in parts], axis=1)
        index = visual.at(numbers).split([part.shape[1] for part in parts], dim=1)
        segments = [(key, value, at) for (key, value, _), at in zip(order, index[:-1], strict=True)]
        return cls(plan, segments, torch.cat([visual.text, index[-1], visual.tail], dim=1))

    def fits(self, plan: LayerPlan, visual: VisualTokens) -> bool:
        """Whether it is that of another layer's plan too."""
        same_rows = len(self.run) == len(visual.positions) and self.run.device == visual.positions.device
        names = ("key_bits", "value_bits", "kept")
        return same_rows and all(np.array_equal(getattr(self.plan, name), getattr(plan, name)) for name in names)


def _tokens(windows: np.ndarray, size: int, kept: np.ndarray | None) -> np.ndarray:
    """Numbers of the visual tokens of some windows without those that are kept, [B or 1, n]."""
    if not len(windows):  # a window may be larger than memory
        size = 0
    tokens = (windows[:, None] * size + np.arange(size)).reshape(1, -1)
    return tokens if kept is None else _rows([tokens[0, ~np.isin(tokens[0], row)] for row in kept])


def _rows(rows: list[np.ndarray]) -> np.ndarray:
    if len({len(row) for row in rows}) > 1:
        raise ValueError(f"rows keep different numbers of tokens of a segment: {[len(row) for row in rows]} are left")
    return np.stack(rows)
