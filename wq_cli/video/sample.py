"""Which frames: middles of equal stretches of time, each frame at most once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wq_cli.config import Sampling
from wq_cli.errors import UsageError

# Below any time base in use (90 kHz, nanoseconds of Matroska rounded to milliseconds), above float64 rounding.
_EPSILON_SECONDS = 1e-7


@dataclass(frozen=True)
class Choice:
    """The chosen frames.

    Attributes:
        ranks: Places in display order, [F] int64, strictly increasing.
        edges: Bounds of the stretches they stand for, [F + 1] float64 seconds.
        requested: Frames asked for.
    """

    ranks: npt.NDArray[np.int64]
    edges: npt.NDArray[np.float64]
    requested: int
    notices: tuple[str, ...]


def choose(starts: npt.NDArray[np.float64], end_seconds: float, sampling: Sampling, default_frames: int) -> Choice:
    """Picks the frame on display in the middle of each stretch.

    Args:
        starts: When each frame comes on display, [N] float64 seconds, not decreasing, first 0.
        end_seconds: When the last one goes off.
        sampling: A number of frames or a rate, and the range of time.
        default_frames: Used when neither a number nor a rate is given.

    Raises:
        UsageError: The range starts after the end of the video.
    """
    low = sampling.start or 0.0
    high = end_seconds if sampling.end is None else min(sampling.end, end_seconds)
    if low > 0 and low >= end_seconds - _EPSILON_SECONDS:
        raise UsageError(f"`--start {low:g}` is not before the end of the video ({end_seconds:.2f} s)")
    notices = []
    if sampling.end is not None and sampling.end > end_seconds + 0.01:
        notices.append(f"`--end {sampling.end:g}` is after the end of the video ({end_seconds:.2f} s)")

    first = int(_on_display(starts, np.array([low]))[0])
    if starts[first] >= low:  # of frames with one and the same time, those before the last count too
        first = int(np.searchsorted(starts, starts[first]))
    stop = max(int(np.searchsorted(starts, high - _EPSILON_SECONDS, side="left")), first + 1)
    available = int(stop - first)
    if sampling.fps is not None:
        requested = max(1, math.ceil((high - low) * sampling.fps - 1e-6))
    else:
        requested = sampling.frames or default_frames

    if requested >= available:
        ranks = np.arange(first, stop, dtype=np.int64)
        edges = np.concatenate(([low], starts[first + 1 : stop], [high]))
        if requested > available:
            notices.append(_fewer(sampling, requested, available, high - low))
        return Choice(ranks, edges, requested, tuple(notices))

    if sampling.fps is not None:
        edges = np.minimum(low + np.arange(requested + 1) / sampling.fps, high)
    else:
        edges = np.linspace(low, high, requested + 1)
    ranks, kept = np.unique(_on_display(starts, (edges[:-1] + edges[1:]) / 2), return_index=True)
    if len(ranks) < requested:
        notices.append(f"only {len(ranks)} different frames are on display at the {requested} times asked for")
    return Choice(ranks, np.append(edges[kept], high), requested, tuple(notices))


def _on_display(starts: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    return np.maximum(np.searchsorted(starts, times + _EPSILON_SECONDS, side="right") - 1, 0)


def _fewer(sampling: Sampling, requested: int, available: int, seconds: float) -> str:
    frames = "1 frame" if available == 1 else f"{available} frames"
    if sampling.fps is not None:
        rate = available / seconds
        return f"`--fps {sampling.fps:g}` is above the rate of the video ({rate:.4g}): all {frames} are used once"
    return f"only {frames} available, {requested} asked for: each is used once"
