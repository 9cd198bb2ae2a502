"""Which frames: by time, by rate, or among the key pictures; each frame at most once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wq_cli.config import Sampling
from wq_cli.errors import UsageError, VideoError

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


@dataclass(frozen=True)
class Range:
    """The part of a video that frames are taken from.

    Attributes:
        low, high: Its bounds in seconds.
        first, stop: Frames on display in it: places [first, stop) in display order, at least one.
    """

    low: float
    high: float
    first: int
    stop: int
    notices: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.high - self.low


def check_start(end_seconds: float, sampling: Sampling) -> None:
    """Raises UsageError for a range of time that begins after the end of the video."""
    low = sampling.start or 0.0
    if low > 0 and low >= end_seconds - _EPSILON_SECONDS:
        raise UsageError(f"`--start {low:g}` is not before the end of the video ({end_seconds:.2f} s)")


def range_of(starts: npt.NDArray[np.float64], end_seconds: float, sampling: Sampling) -> Range:
    """The range of time that was asked for, within the video.

    Args:
        starts: When each frame comes on display, [N] float64 seconds, not decreasing, first 0.
        end_seconds: When the last one goes off.

    Raises:
        UsageError: It starts after the end of the video.
    """
    check_start(end_seconds, sampling)
    low = sampling.start or 0.0
    high = end_seconds if sampling.end is None else min(sampling.end, end_seconds)
    notices = []
    if sampling.end is not None and sampling.end > end_seconds + 0.01:
        notices.append(f"`--end {sampling.end:g}` is after the end of the video ({end_seconds:.2f} s)")
    first = int(on_display(starts, np.array([low]))[0])
    if starts[first] >= low:  # of frames with one and the same time, those before the last count too
        first = int(np.searchsorted(starts, starts[first]))
    stop = max(int(np.searchsorted(starts, high - _EPSILON_SECONDS, side="left")), first + 1)
    return Range(low, high, first, stop, tuple(notices))


def choose(starts: npt.NDArray[np.float64], end_seconds: float, sampling: Sampling, default_frames: int) -> Choice:
    """Picks the frame on display in the middle of each of some equal stretches of time.

    Args:
        starts: When each frame comes on display, [N] float64 seconds, not decreasing, first 0.
        end_seconds: When the last one goes off.
        sampling: A number of frames or a rate, and the range of time.
        default_frames: Used when neither a number nor a rate is given.

    Raises:
        UsageError: The range starts after the end of the video.
    """
    part = range_of(starts, end_seconds, sampling)
    if sampling.fps is not None:
        requested = max(1, math.ceil(part.seconds * sampling.fps - 1e-6))
    else:
        requested = sampling.frames or default_frames
    if requested >= part.stop - part.first:
        return every_frame(starts, part, sampling, requested)

    if sampling.fps is not None:
        edges = np.minimum(part.low + np.arange(requested + 1) / sampling.fps, part.high)
    else:
        edges = np.linspace(part.low, part.high, requested + 1)
    ranks, kept = np.unique(on_display(starts, (edges[:-1] + edges[1:]) / 2), return_index=True)
    notices = part.notices
    if len(ranks) < requested:
        notices += (f"only {len(ranks)} different frames are on display at the {requested} times asked for",)
    return Choice(ranks, np.append(edges[kept], part.high), requested, notices)


def choose_keys(
    starts: npt.NDArray[np.float64],
    end_seconds: float,
    sampling: Sampling,
    default_frames: int,
    keys: npt.NDArray[np.int64],
) -> Choice:
    """Picks the key picture nearest to the middle of each of some equal stretches of time.

    Args:
        starts, end_seconds, sampling, default_frames: As of `choose`.
        keys: Places of the key pictures, [K] int64, increasing.

    Raises:
        UsageError: The range starts after the end of the video.
        VideoError: There is no key picture in the range.
    """
    part = range_of(starts, end_seconds, sampling)
    requested = sampling.frames or default_frames
    keys = keys[(keys >= part.first) & (keys < part.stop)]
    if not len(keys):
        raise VideoError(
            f"there is no key picture between {part.low:g} and {part.high:g} s",
            "`--sample uniform` takes any picture",
        )
    edges = np.linspace(part.low, part.high, requested + 1)
    middles = (edges[:-1] + edges[1:]) / 2
    after = np.clip(np.searchsorted(starts[keys], middles), 1, max(len(keys) - 1, 1))
    before, after = keys[after - 1], keys[np.minimum(after, len(keys) - 1)]
    ranks = np.unique(np.where(middles - starts[before] <= starts[after] - middles, before, after))
    notices = part.notices
    if len(keys) < requested:
        ranks = keys
        notices += (f"only {_counted(len(keys), 'key picture')} available, {requested} asked for: each is used once",)
    elif len(ranks) < requested:
        notices += (f"only {len(ranks)} different key pictures are nearest to the {requested} times asked for",)
    bounds = np.maximum((starts[ranks[:-1]] + starts[ranks[1:]]) / 2, part.low)
    return Choice(ranks, np.concatenate(([part.low], bounds, [part.high])), requested, notices)


def every_frame(starts: npt.NDArray[np.float64], part: Range, sampling: Sampling, requested: int) -> Choice:
    """All frames of a range that holds no more than were asked for."""
    available = part.stop - part.first
    notices = part.notices
    if requested > available and sampling.fps is not None:
        rate = available / part.seconds
        what = f"`--fps {sampling.fps:g}` is above the rate of the video ({rate:.4g})"
        notices += (f"{what}: all {_counted(available, 'frame')} are used once",)
    elif requested > available:
        notices += (f"only {_counted(available, 'frame')} available, {requested} asked for: each is used once",)
    edges = np.concatenate(([part.low], starts[part.first + 1 : part.stop], [part.high]))
    return Choice(np.arange(part.first, part.stop, dtype=np.int64), edges, requested, notices)


def on_display(starts: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Places of the frames on display at some times, [T]."""
    return np.maximum(np.searchsorted(starts, times + _EPSILON_SECONDS, side="right") - 1, 0)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
