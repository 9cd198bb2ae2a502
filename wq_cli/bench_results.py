"""What the benchmarks below `wq bench` produced, as plain data: kernels, growth with frames, the paper's experiments.

See `results` for the rest and for how they become JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wq_cli.results import BenchRow, ModelResult
    from wq_kernels.bench import Row


@dataclass(frozen=True)
class KernelsResult:
    """Decode attention and packing of one layer beside other attention.

    Attributes:
        machine: Card, versions, date and `copy_gb_per_second`, the bandwidth that fractions are of.
    """

    command: str
    machine: dict[str, Any]
    rows: tuple[Row, ...]
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ScalingRow:
    """The policies side by side on a clip of so many frames."""

    frames: int
    visual_tokens: int
    policies: tuple[BenchRow, ...]


@dataclass(frozen=True)
class ScalingResult:
    """Memory and speed while the video grows (Figs 1b and 2 of arXiv 2605.02262)."""

    command: str
    model: ModelResult
    batch: int
    decode_tokens: int
    rows: tuple[ScalingRow, ...]
    settings: dict[str, Any]
    versions: dict[str, str]
    date: str
    notices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PaperRow:
    """One figure of the paper and ours.

    Attributes:
        experiment: What was measured, at which batch and number of frames.
        variant: How.
        paper: The paper's figure, on another card.
        ours: None where it could not be measured, for the reason in `error`.
        effective_bits: Of the cache that it was measured on.
    """

    experiment: str
    variant: str
    unit: str
    paper: float
    ours: float | None = None
    effective_bits: float | None = None
    error: str | None = None


@dataclass(frozen=True)
class CapacityRow:
    """What fits a card.

    Attributes:
        memory_gb: Of the card, 10**9 bytes each.
        batch: Most requests side by side; None where it could not be found, for the reason in `error`.
        frames: Most frames of one request; None likewise.
    """

    memory_gb: float
    policy: str
    batch: int | None = None
    frames: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class PaperResult:
    """The paper's experiments on speed and memory (arXiv 2605.02262), on random weights.

    Attributes:
        memory_from: Whether capacities were found with an `allocator` that was capped, or `counted` from tensors.
        batch_frames: Frames of each request where the batch grows.
    """

    command: str
    model: ModelResult
    rows: tuple[PaperRow, ...]
    capacities: tuple[CapacityRow, ...]
    memory_from: str
    batch_frames: int
    settings: dict[str, Any]
    versions: dict[str, str]
    date: str
    notices: tuple[str, ...] = ()
