"""What reading a video gives: facts about the file and the chosen frames, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class VideoInfo:
    """Facts about one video stream, measured on its packets rather than read from its header.

    Attributes:
        path: Name of the file, safe to print.
        width, height: Pixels of the picture as it is shown: turned upright, with square pixels.
        duration_seconds: From the first picture to the end of the last one.
        fps: Average rate; None for a single picture.
        rotation_degrees: Clockwise turn that the file asks for and that every frame gets: 0, 90, 180 or 270.
        codec, container: FFmpeg's names.
        comment: The `comment` tag of the container.
        frame_count: Pictures in the stream; None when it holds none that can be counted.
        start_seconds: Time the file itself gives its first picture; everything else counts from there.
    """

    path: str
    width: int
    height: int
    duration_seconds: float
    fps: float | None
    rotation_degrees: int
    codec: str
    container: str
    has_audio: bool
    comment: str | None
    frame_count: int | None
    start_seconds: float


@dataclass(frozen=True, repr=False)
class Clip:
    """The sampled frames.

    Attributes:
        frames: RGB, [F, H, W, 3] uint8.
        pts_seconds: Time of each frame, [F] float64, increasing, 0 being the first frame of the video.
        span_seconds: Stretch of time each frame stands for, [F, 2] float64, without gaps over the chosen range.
        requested: Frames asked for, or times that a rate asked for.
        notices: One sentence each: what differs from what was asked.
    """

    frames: npt.NDArray[np.uint8]
    pts_seconds: npt.NDArray[np.float64]
    span_seconds: npt.NDArray[np.float64]
    info: VideoInfo
    requested: int | None
    notices: tuple[str, ...] = ()

    def thinned(self, count: int, notice: str) -> Clip:
        """Fewer of the frames, those in the middles of equal runs, each standing for the times of its whole run.

        Args:
            count: From 1 to F.
            notice: Why.
        """
        bounds = np.arange(count + 1) * len(self.frames) // count
        kept = (bounds[:-1] + bounds[1:]) // 2
        spans = np.stack((self.span_seconds[bounds[:-1], 0], self.span_seconds[bounds[1:] - 1, 1]), axis=1)
        return replace(
            self,
            frames=self.frames[kept],
            pts_seconds=self.pts_seconds[kept],
            span_seconds=spans,
            notices=(*self.notices, notice),
        )

    def __repr__(self) -> str:
        return (
            f"Clip(frames={list(self.frames.shape)} {self.frames.dtype}, "
            f"pts_seconds={self.pts_seconds[0]:.3f}..{self.pts_seconds[-1]:.3f}, "
            f"requested={self.requested}, path={self.info.path!r})"
        )
