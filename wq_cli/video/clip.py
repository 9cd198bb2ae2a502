"""What reading a video gives: facts about the file and the chosen frames, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Limits:
    """Caps that keep a small file from unpacking into gigabytes; each message names the flag that lifts it.

    Attributes:
        max_frames_walked: Pictures looked at in one file, decoded or not (`--max-frames-walked`).
        max_pixels: Pixels of one picture, as stored and as shown (`--max-pixels`).
        max_frames: Frames of one clip (`--max-frames`).
        max_copied_bytes: Bytes taken from standard input, a pipe or a web address (`--max-copied-bytes`).
        timeout_seconds: Longest silence of a web server (`--timeout`).
    """

    max_frames_walked: int = 2_000_000
    max_pixels: int = 2**26
    max_frames: int = 4096
    max_copied_bytes: int = 2**33
    timeout_seconds: float = 30.0


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

    def __repr__(self) -> str:
        return (
            f"Clip(frames={list(self.frames.shape)} {self.frames.dtype}, "
            f"pts_seconds={self.pts_seconds[0]:.3f}..{self.pts_seconds[-1]:.3f}, "
            f"requested={self.requested}, path={self.info.path!r})"
        )
