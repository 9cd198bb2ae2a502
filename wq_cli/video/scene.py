"""Frames spread over the shots of a video: where the picture changes at once, a new shot begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from wq_cli.config import Sampling
from wq_cli.video.sample import Choice, Range, every_frame, on_display, range_of

# Pictures compared at most; of longer videos only key pictures are, and encoders put those at cuts.
MOST_COMPARED = 3000
# Pixels of the pictures that are compared.
COMPARED_SIZE = (64, 36)
_BINS = 16
# Share of all pixels that change their colour: at least this, and this many times what is usual around.
_LEAST_CHANGE = 0.25
_TIMES_USUAL = 4.0
_NEIGHBOURS = 8

# Ranks [C] to (rank found, small picture [h, w, 3]), in order.
Look = Callable[[npt.NDArray[np.int64]], Iterable[tuple[int, npt.NDArray[np.uint8]]]]


def choose_scenes(
    starts: npt.NDArray[np.float64],
    end_seconds: float,
    sampling: Sampling,
    default_frames: int,
    keys: npt.NDArray[np.int64],
    look: Look,
) -> Choice:
    """Picks frames from every shot: one each, the rest where shots are long.

    Where there are more shots than frames, the longest shots get them.

    Args:
        starts: When each frame comes on display, [N] float64 seconds, not decreasing, first 0.
        end_seconds: When the last one goes off.
        sampling: A number of frames, and the range of time.
        default_frames: Used when no number is given.
        keys: Places of the key pictures, [K] int64, increasing.
        look: Gives small pictures to compare.

    Raises:
        UsageError: The range starts after the end of the video.
    """
    part = range_of(starts, end_seconds, sampling)
    requested = sampling.frames or default_frames
    if requested >= part.stop - part.first:
        return every_frame(starts, part, sampling, requested)
    found_ranks, histograms = [], []
    for rank, picture in look(_compared(part, keys, requested)):
        found_ranks.append(rank)
        histograms.append(histogram(picture))
    cuts = starts[[found_ranks[at] for at in cuts_in(histograms)]]
    bounds = np.concatenate(([part.low], cuts[(cuts > part.low) & (cuts < part.high)], [part.high]))
    shots = len(bounds) - 1
    found = "1 shot found" if shots == 1 else f"{shots} shots found"
    notices = (*part.notices, found if shots <= requested else f"{found}, {requested} frames asked for: the longest")

    shares = _shares(np.diff(bounds), requested)
    inner = [np.linspace(*shot, count + 1) for shot, count in zip(pairwise(bounds), shares, strict=True) if count]
    ranks, kept = np.unique(
        on_display(starts, np.concatenate([(edges[:-1] + edges[1:]) / 2 for edges in inner])), return_index=True
    )
    if len(ranks) < requested:
        notices += (f"only {len(ranks)} different frames are on display at the {requested} times in them",)
    edges = np.concatenate([edges[:-1] for edges in inner])[kept]
    edges[0] = part.low
    return Choice(ranks, np.append(edges, part.high), requested, notices)


def _compared(part: Range, keys: npt.NDArray[np.int64], requested: int) -> npt.NDArray[np.int64]:
    """All pictures of a range, or its key pictures, or as many in equal steps where those are too few."""
    count = part.stop - part.first
    if count > MOST_COMPARED:
        keys = keys[(keys >= part.first) & (keys < part.stop)]
        if len(keys) >= 2 * requested:
            return keys[:: -(-len(keys) // MOST_COMPARED)]
    return np.arange(part.first, part.stop, -(-count // MOST_COMPARED), dtype=np.int64)


def histogram(picture: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Share of the pixels in each bin of each channel, [3 * bins].

    A level between two bins counts for both, so that a slow change of light moves it from one to the other.

    Args:
        picture: RGB, [H, W, 3].
    """
    level = picture.reshape(-1, 3) / 255 * (_BINS - 1)
    below = np.minimum(level.astype(np.int64), _BINS - 2)
    bins = (below + np.arange(3) * _BINS).ravel()
    above = (level - below).ravel()
    counted = np.bincount(bins, 1 - above, 3 * _BINS) + np.bincount(bins + 1, above, 3 * _BINS)
    return (counted / len(level)).astype(np.float32)


def cuts_in(histograms: Sequence[npt.NDArray[np.float32]]) -> list[int]:
    """Pictures that begin a new shot: their histogram is far from the one before, and farther than is usual there.

    Args:
        histograms: Of C pictures in order, [3 * bins] each.
    """
    if len(histograms) < 2:
        return []
    change = np.abs(np.diff(histograms, axis=0)).sum(axis=1) / 6  # 3 channels, and each pixel leaves and arrives
    around = np.pad(change, _NEIGHBOURS, mode="reflect" if len(change) > _NEIGHBOURS else "edge")
    usual = np.median(np.lib.stride_tricks.sliding_window_view(around, 2 * _NEIGHBOURS + 1), axis=1)
    return (np.flatnonzero((change > _LEAST_CHANGE) & (change > _TIMES_USUAL * usual)) + 1).tolist()


def _shares(seconds: npt.NDArray[np.float64], frames: int) -> list[int]:
    """How many of the frames each shot gets: one, as far as they go, the longest first; the rest by length."""
    counts = np.zeros(len(seconds), np.int64)
    counts[np.argsort(-seconds, kind="stable")[:frames]] = 1
    for _ in range(frames - int(counts.sum())):
        counts[np.argmax(seconds / (2 * counts + 1))] += 1  # Sainte-Laguë
    return counts.tolist()
