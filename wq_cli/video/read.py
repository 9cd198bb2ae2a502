"""The two entry points: facts about a video, and its sampled frames."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import av
import numpy as np
import numpy.typing as npt

from wq_cli.config import Limits, Sampling
from wq_cli.errors import VideoError
from wq_cli.video.animation import AnimationReel, is_animated_webp
from wq_cli.video.clip import Clip, VideoInfo
from wq_cli.video.images import FolderReel
from wq_cli.video.picture import fit
from wq_cli.video.reel import Reel, open_video
from wq_cli.video.sample import Choice, check_start, choose, choose_keys
from wq_cli.video.scene import COMPARED_SIZE, choose_scenes
from wq_cli.video.source import open_source, printable

Progress = Callable[[int, int], None]


def probe(path: str | os.PathLike[str], limits: Limits = Limits(), sampling: Sampling = Sampling()) -> VideoInfo:
    """Facts about a video, from its packets and its first picture.

    Args:
        path: A file, a folder of pictures, or `-` for standard input.
        limits: Caps against files that unpack into far more than they look.
        sampling: What `read` will be asked for: the rate of a folder's pictures, and a range of time.

    Raises:
        VideoError: The file cannot be opened or holds no video.
        UsageError: The range of time begins after the end of the video.
    """
    with _opened(os.fspath(path), limits, sampling.fps, lambda: None) as reel:
        check_start(reel.end_seconds, sampling)
        return reel.info


def read(
    path: str | os.PathLike[str],
    sampling: Sampling,
    *,
    default_frames: int,
    max_side: int | None = None,
    limits: Limits = Limits(),
    on_progress: Progress | None = None,
    on_packet: Callable[[], None] = lambda: None,
) -> Clip:
    """Samples frames of a video by time.

    Memory grows with the frames asked for, not with the length of the file.

    Args:
        path: A file, a folder of pictures, or `-` for standard input.
        sampling: Number of frames or rate, and range of time in seconds from the first frame.
        default_frames: Number of frames when `sampling` gives neither number nor rate.
        max_side: Longest side of the frames in pixels; larger ones are shrunk while they are converted.
        limits: Caps against files that unpack into far more than they look.
        on_progress: Called with (frames done, frames in all) after each frame.
        on_packet: Called at each step of reading the file, however long until the next frame, and by several threads;
            what it raises ends it.

    Raises:
        VideoError: The file cannot be opened or holds no video, or passes one of the limits.
        UsageError: The range of time lies outside the video.
    """
    with _opened(os.fspath(path), limits, sampling.fps, on_packet) as reel:
        choice = _choice(reel, sampling, default_frames)
        count = len(choice.ranks)
        if count > limits.max_frames:
            raise VideoError(
                f"{count:,} frames are asked for, more than {limits.max_frames:,}",
                "ask for fewer, or lift the limit with `--max-frames`",
            )
        width, height = fit(reel.info.width, reel.info.height, max_side)
        frames = _room_for(count, height, width)
        ranks: list[int] = []
        kept: list[int] = []
        with closing(reel.pictures(choice.ranks, frames)) as pictures:
            for index, rank in pictures:
                on_packet()
                if not ranks or rank > ranks[-1]:
                    if len(ranks) < index:  # those that are missing or twice leave gaps
                        frames[len(ranks)] = frames[index]
                    ranks.append(rank)
                    kept.append(index)
                if on_progress:
                    on_progress(index + 1, count)
        if not ranks:
            raise VideoError(f"no frame of `{reel.info.path}` can be decoded in this range", "the file is damaged")
        edges = np.concatenate((choice.edges[:1], choice.edges[kept[1:]], choice.edges[-1:]))
        return Clip(
            frames=frames[: len(ranks)],
            pts_seconds=reel.starts[ranks],
            span_seconds=np.stack((edges[:-1], edges[1:]), axis=1),
            info=reel.info,
            requested=choice.requested,
            notices=(*reel.notices, *choice.notices, *_losses(choice.ranks, ranks, kept, reel)),
        )


def _room_for(count: int, height: int, width: int) -> npt.NDArray[np.uint8]:
    """Memory for RGB frames, [count, height, width, 3], in pages of the usual size.

    `np.empty` asks for huge ones. Where a host hands memory to its virtual machines bit by bit, those are seldom at
    hand, and filling them took as long as a third of the decoding. Private ones: shared ones, which `mmap` gives
    otherwise, take half as long again to fill.
    """
    try:
        memory = mmap.mmap(-1, count * height * width * 3, access=mmap.ACCESS_COPY)
    except (OSError, ValueError, OverflowError):
        raise MemoryError from None
    return np.frombuffer(memory, np.uint8).reshape(count, height, width, 3)


def _choice(reel: Reel, sampling: Sampling, default_frames: int) -> Choice:
    if sampling.sample == "keyframes":
        return choose_keys(reel.starts, reel.end_seconds, sampling, default_frames, reel.keys)
    if sampling.sample != "scene":
        return choose(reel.starts, reel.end_seconds, sampling, default_frames)

    def look(ranks: npt.NDArray[np.int64]) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        width, height = COMPARED_SIZE
        small = np.empty((len(ranks), height, width, 3), np.uint8)
        with closing(reel.pictures(ranks, small)) as pictures:
            for index, rank in pictures:
                yield rank, small[index]

    return choose_scenes(reel.starts, reel.end_seconds, sampling, default_frames, reel.keys, look)


@contextmanager
def _opened(path: str, limits: Limits, fps: float | None, on_packet: Callable[[], None]) -> Iterator[Reel]:
    if os.path.isdir(path):
        yield FolderReel(path, limits, fps)
        return
    name = printable(path)
    try:
        with open_source(path, limits) as file:
            if is_animated_webp(file):
                yield AnimationReel(file, limits, name, on_packet)
                return
            with open_video(file, limits, name, on_packet) as reel:
                yield reel
    except av.FFmpegError:
        raise VideoError(f"`{name}` cannot be decoded", "the file is damaged") from None
    except OSError as error:
        raise VideoError(f"`{name}` cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise VideoError(f"the frames of `{name}` do not fit in memory", "lower `--frames`") from None


def _losses(asked: npt.NDArray[np.int64], found: list[int], kept: list[int], reel: Reel) -> list[str]:
    """What damage cost: frames left out, and frames that others stand for."""
    where = f" (damage near {reel.starts[min(reel.damage)]:.1f} s)" if reel.damage else ""
    left_out = len(asked) - len(found)
    replaced = int((asked[kept] != found).sum()) if reel.damage else 0
    notices = []
    if left_out:
        notices.append(f"{left_out} of {len(asked)} frames cannot be decoded and are left out{where}")
    if replaced:
        notices.append(
            f"{replaced} of {len(asked)} frames cannot be decoded: the last good ones before are used{where}"
        )
    return notices
