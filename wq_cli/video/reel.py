"""A video file as frames in time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import BinaryIO, Protocol

import av
import numpy as np
import numpy.typing as npt
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from wq_cli.config import Limits
from wq_cli.errors import VideoError
from wq_cli.video.clip import VideoInfo
from wq_cli.video.container import best_stream, check_pixels, open_container, tag, video_streams
from wq_cli.video.decode import Decoder, plan
from wq_cli.video.parallel import available_cores, decoded_in_parallel, worker_count
from wq_cli.video.picture import Orientation, display_size, orientation, to_rgb
from wq_cli.video.timeline import Timeline, scan

# Key pictures tried before a file counts as hopeless.
_ATTEMPTS = 64


class Reel(Protocol):
    """Pictures in time, whatever they are stored in.

    Attributes:
        starts: When each picture comes on display, [N] float64 seconds, not decreasing, first 0.
        end_seconds: When the last one goes off.
        keys: Places of the key pictures, which can be decoded without any other, [K] int64, increasing.
        notices: What is amiss with the whole.
        damage: Places of pictures found broken so far.
    """

    info: VideoInfo
    starts: npt.NDArray[np.float64]
    end_seconds: float
    keys: npt.NDArray[np.int64]
    notices: list[str]
    damage: set[int]

    def pictures(self, ranks: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> Generator[tuple[int, int]]:
        """Puts pictures into memory, in order.

        Args:
            ranks: Their places, [F], strictly increasing.
            out: Where they go, RGB, [F, H, W, 3]. What lies behind the last index that came may be written to as well.

        Yields:
            Index into `ranks` and `out`, place of the picture found for it. Where the one asked for is broken it is
            the last good one before it, or none at all.
        """


class VideoReel:
    """A stream of a video file."""

    def __init__(
        self,
        info: VideoInfo,
        turn: Orientation,
        timeline: Timeline,
        decoder: Decoder,
        limits: Limits,
        notices: list[str],
    ) -> None:
        self.info, self.notices = info, notices
        self.starts, self.end_seconds, self.damage = timeline.starts, timeline.end_seconds, decoder.damage
        self.keys = np.unique(timeline.ranks[timeline.keys][timeline.ranks[timeline.keys] >= 0])
        self._turn, self._timeline, self._decoder, self._limits = turn, timeline, decoder, limits

    def pictures(self, ranks: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> Generator[tuple[int, int]]:
        height, width = out.shape[1:3]

        def put(index: int, frame: VideoFrame) -> None:
            check_pixels(frame.width, frame.height, self._limits, self.info.path)
            out[index] = to_rgb(frame, self._turn, width, height)

        done = 0
        runs = plan(self._timeline, ranks)
        workers = worker_count(runs, self.info.width * self.info.height, available_cores())
        if workers > 1 and not self._decoder.is_careful:
            with closing(decoded_in_parallel(self._decoder, runs, workers, put)) as found:
                for index, rank in found:
                    yield index, rank
                    done = index + 1
        if done < len(ranks):
            for index, rank, frame in self._decoder.frames(ranks[done:]):
                put(done + index, frame)
                yield done + index, rank


@contextmanager
def open_video(file: BinaryIO, limits: Limits, name: str, on_packet: Callable[[], None]) -> Iterator[VideoReel]:
    """Scans the packets of a file and decodes its first picture.

    Args:
        on_packet: Called before each packet that is read; what it raises ends the reading.

    Raises:
        VideoError: There is no video in it, or none that can be decoded, or it passes one of the limits.
    """
    with open_container(file, limits, name) as container:
        stream = best_stream(container, limits, name)
        timeline = scan(container, stream, limits, name, on_packet)
        notices = _cut_notices(timeline, _promised_seconds(container, stream))
        moving = sum(s.frames != 1 for s in video_streams(container))
        if moving > 1:
            notices.append(f"the file holds {moving} video streams: one of {stream.width}x{stream.height} is read")
        comment = tag(container.metadata, "comment")
        has_audio = bool(container.streams.audio)
        container_name = container.format.name
    with closing(Decoder(file, limits, name, timeline, on_packet)) as decoder:
        first = _first_picture(decoder, timeline)
        if first is None:
            raise VideoError(
                f"no picture in `{name}` can be decoded", "it is damaged, or in a format that this FFmpeg does not know"
            )
        decoder.may_skip = not first.interlaced_frame
        turn = orientation(first)
        width, height = display_size(first, decoder.stream.sample_aspect_ratio, turn)
        check_pixels(width, height, limits, name)
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
            comment=comment,
            frame_count=count,
            start_seconds=timeline.origin_seconds,
        )
        yield VideoReel(info, turn, timeline, decoder, limits, notices)


def _first_picture(decoder: Decoder, timeline: Timeline) -> VideoFrame | None:
    keys = timeline.ranks[timeline.keys[:_ATTEMPTS]]
    for rank in [0, *keys[keys > 0].tolist()]:
        for _, _, frame in decoder.frames(np.array([rank])):
            return frame
    return None


def _cut_notices(timeline: Timeline, promised_seconds: float) -> list[str]:
    if promised_seconds > 1.1 * timeline.end_seconds + 0.5:
        return [f"the file promises {promised_seconds:.1f} s of video and holds {timeline.end_seconds:.1f} s"]
    return ["the file breaks off in the middle of a picture"] if timeline.is_cut else []


def _promised_seconds(container: InputContainer, stream: VideoStream) -> float:
    """Length by the header, 0 where it gives none."""
    if stream.duration and stream.time_base:
        return float(stream.duration * stream.time_base)
    return ((container.duration or 0) - (container.start_time or 0)) / av.time_base
