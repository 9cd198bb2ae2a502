"""Runs of pictures decoded by several threads: each begins at a key picture and needs nothing of the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from queue import Empty, SimpleQueue
from threading import Event

import numpy as np
from av.video.frame import VideoFrame

from wq_cli.video.container import CAN_SHARE_FILES
from wq_cli.video.decode import Decoder, Run

_MOST_WORKERS = 8
# A worker opens the file anew, in about the time that one second of 1920x1080 takes to decode.
_PIXELS_PER_WORKER = 1 << 24
# Every decoder holds up to 16 pictures to refer to.
_PIXELS_AT_ONCE = 1 << 25


class _StoppedError(Exception):
    """The result of a worker is not wanted any more."""


def available_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(runs: Sequence[Run], pixels: int, cores: int) -> int:
    """Threads that some runs are worth; 1 where FFmpeg's own threads do better.

    Those work on the packets of one run, starting and ending with it, and come to about half of what they are.

    Args:
        runs: At least one.
        pixels: Of one picture.
    """
    lengths = [run.stop - run.start + 1 for run in runs]
    packets = sum(lengths)
    most = min(_MOST_WORKERS, cores, packets // max(lengths))
    workers = min(most, packets * pixels // _PIXELS_PER_WORKER, _PIXELS_AT_ONCE // pixels)
    own_threads = min(cores, packets // len(lengths))
    return workers if CAN_SHARE_FILES and 2 * workers >= max(own_threads, 2) else 1


def decoded_in_parallel(
    decoder: Decoder, runs: Sequence[Run], workers: int, put: Callable[[int, VideoFrame], None]
) -> Generator[tuple[int, int]]:
    """Decodes runs, each as it would be after an undamaged beginning.

    Ends before the first run that is damaged: what an error means for those behind it, only a decoder that reads them
    all in turn can tell. Damage that no decoder reports (FLV1, MJPEG, VP8) goes unnoticed here too; what such a picture
    shows in the damaged part depends on the ones decoded before it.

    Args:
        decoder: Of the file; it is not used itself.
        put: Called by the workers with the index of a picture, over all runs, and the picture; not in order.

    Yields:
        Index and rank of each picture, in order, after it was put.
    """
    stopped = Event()
    idle: SimpleQueue[Decoder] = SimpleQueue()

    def go_on() -> None:
        if stopped.is_set():
            raise _StoppedError
        decoder.on_packet()

    def is_whole(first: int, run: Run) -> bool:
        try:
            own = idle.get_nowait()
        except Empty:
            own = decoder.for_a_thread(go_on)
        try:
            found = []
            for index, rank, frame in own.frames(np.array(run.ranks)):
                put(first + index, frame)
                found.append(rank)
            return tuple(found) == run.ranks and not own.damage
        finally:
            idle.put(own)

    firsts = list(accumulate((len(run.ranks) for run in runs), initial=0))
    pool = ThreadPoolExecutor(workers)
    try:
        for first, run, job in [(*args, pool.submit(is_whole, *args)) for args in zip(firsts, runs, strict=False)]:
            if not job.result():
                return
            yield from enumerate(run.ranks, first)
    finally:
        stopped.set()
        pool.shutdown(cancel_futures=True)
        while not idle.empty():
            idle.get().close()
