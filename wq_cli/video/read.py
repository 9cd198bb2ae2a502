"""The two entry points: facts about a file, and its sampled frames."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from av.video.frame import VideoFrame

from wq_cli.config import Sampling
from wq_cli.errors import VideoError
from wq_cli.video.clip import Clip, Limits, VideoInfo
from wq_cli.video.container import best_stream, open_container
from wq_cli.video.decode import Decoder
from wq_cli.video.images import probe_folder, read_folder
from wq_cli.video.picture import Orientation, display_size, fit, orientation, to_rgb
from wq_cli.video.sample import choose
from wq_cli.video.source import open_source, printable
from wq_cli.video.timeline import Timeline, scan

# Key pictures tried before a file counts as hopeless.
_ATTEMPTS = 64

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Video:
    info: VideoInfo
    turn: Orientation
    timeline: Timeline
    decoder: Decoder
    notices: tuple[str, ...]


def probe(path: str | os.PathLike[str], limits: Limits = Limits()) -> VideoInfo:
    """Facts about a video, from its packets and its first picture.

    Raises:
        VideoError: The file cannot be opened or holds no video.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        return probe_folder(name, limits)
    with open_source(name) as file, _opened(file, limits, printable(name)) as video:
        return video.info


def read(
    path: str | os.PathLike[str],
    sampling: Sampling,
    *,
    default_frames: int,
    max_side: int | None = None,
    limits: Limits = Limits(),
    on_progress: Progress | None = None,
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

    Raises:
        VideoError: The file cannot be opened or holds no video, or passes one of the limits.
        UsageError: The range of time lies outside the video.
    """
    name = os.fspath(path)
    if os.path.isdir(name):
        return read_folder(
            name,
            sampling,
            default_frames=default_frames,
            max_side=max_side,
            limits=limits,
            on_progress=on_progress,
        )
    with open_source(name) as file, _opened(file, limits, printable(name)) as video:
        timeline = video.timeline
        choice = choose(timeline.starts, timeline.end_seconds, sampling, default_frames)
        width, height = fit(video.info.width, video.info.height, max_side)
        count = len(choice.ranks)
        frames = np.empty((count, height, width, 3), np.uint8)
        found: list[int] = []
        kept: list[int] = []
        for index, rank, frame in video.decoder.frames(choice.ranks):
            if not found or rank > found[-1]:
                frames[len(found)] = to_rgb(frame, video.turn, width, height)
                found.append(rank)
                kept.append(index)
            if on_progress:
                on_progress(index + 1, count)
        notices = [*video.notices, *choice.notices]
        if not found:
            raise VideoError(f"no frame of `{video.info.path}` can be decoded", "the file is damaged")
        if len(found) < count:
            notices.append(_lost(count - len(found), count, video.decoder.damage, timeline))
        edges = np.append(choice.edges[kept], choice.edges[-1])
        edges[0] = choice.edges[0]
        return Clip(
            frames=frames[: len(found)],
            pts_seconds=timeline.starts[found],
            span_seconds=np.stack((edges[:-1], edges[1:]), axis=1),
            info=video.info,
            requested=choice.requested,
            notices=tuple(notices),
        )


def _lost(lost: int, count: int, damage: set[int], timeline: Timeline) -> str:
    where = f" (damage near {timeline.starts[min(damage)]:.1f} s)" if damage else ""
    return f"{lost} of {count} frames cannot be decoded and are left out{where}"


@contextmanager
def _opened(file: BinaryIO, limits: Limits, name: str) -> Iterator[_Video]:
    with open_container(file, limits, name) as container:
        stream = best_stream(container, name)
        timeline = scan(container, stream, limits, name)
        notices = _cut_notices(timeline, stream.frames)
        tags = {key.lower(): value for key, value in container.metadata.items()}
        has_audio = bool(container.streams.audio)
        container_name = container.format.name
    with closing(Decoder(file, limits, name, timeline)) as decoder:
        first = _first_picture(decoder, timeline)
        if first is None:
            raise VideoError(f"no frame of `{name}` can be decoded", "the file is damaged")
        turn = orientation(first)
        width, height = display_size(first, decoder.stream.sample_aspect_ratio, turn)
        if max(width * height, first.width * first.height) > limits.max_pixels:
            raise VideoError(
                f"frames of `{name}` have {width * height:,} pixels, more than {limits.max_pixels:,}",
                "lift the limit with `--max-pixels`",
            )
        count = len(timeline.starts)
        info = VideoInfo(
            path=name,
            width=width,
            height=height,
            duration_seconds=timeline.end_seconds,
            fps=count / timeline.end_seconds if count > 1 else None,
            rotation_degrees=turn.rotation_degrees,
            codec=decoder.stream.codec_context.name,
            container=container_name,
            has_audio=has_audio,
            comment=tags.get("comment"),
            frame_count=count,
            start_seconds=timeline.origin_seconds,
        )
        yield _Video(info, turn, timeline, decoder, notices)


def _first_picture(decoder: Decoder, timeline: Timeline) -> VideoFrame | None:
    ranks = timeline.ranks[timeline.keys[:_ATTEMPTS]]
    for rank in ranks[ranks >= 0]:
        for _, _, frame in decoder.frames(np.array([rank])):
            return frame
    return None


def _cut_notices(timeline: Timeline, promised: int) -> tuple[str, ...]:
    count = len(timeline.starts)
    if timeline.is_cut or promised > count:
        of = f" of the {promised}" if promised > count else ""
        return (f"the file is incomplete: only the first {count}{of} frames can be read",)
    return ()
