"""An animated WebP as frames in time, through Pillow: FFmpeg's decoder knows still ones alone."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from wq_cli.config import Limits
from wq_cli.errors import VideoError
from wq_cli.video.clip import VideoInfo
from wq_cli.video.container import check_pixels
from wq_cli.video.picture import flattened

_ANIMATION_FLAG = 2
# Of files whose pictures all last no time.
_ASSUMED_SECONDS = 0.1
_BROKEN = (OSError, EOFError, ValueError, SyntaxError)


def is_animated_webp(file: BinaryIO) -> bool:
    """Whether the file's first chunk says so (RFC 9649, section 2.7)."""
    file.seek(0)
    head = file.read(21)
    return head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and bool(head[-1] & _ANIMATION_FLAG)


class AnimationReel:
    """The pictures of an animated WebP, each drawn over the one before.

    Args:
        file: Open file.
        name: Of the file, safe to print.
        on_packet: Called before each picture; what it raises ends the reading.

    Raises:
        VideoError: No picture can be decoded, or it passes one of the limits.
    """

    def __init__(self, file: BinaryIO, limits: Limits, name: str, on_packet: Callable[[], None]) -> None:
        self._on_packet = on_packet
        self.damage: set[int] = set()
        self.notices: list[str] = []
        try:
            self._image = Image.open(file, formats=["WEBP"])
            check_pixels(self._image.width, self._image.height, limits, name)
            promised = int(getattr(self._image, "n_frames", 1))
        except Image.DecompressionBombError:
            raise VideoError(f"`{name}` is larger than Pillow opens", "shrink the pictures") from None
        except _BROKEN:
            raise VideoError(f"`{name}` is incomplete or not a video", "copy or download it again") from None
        if promised > limits.max_frames_walked:
            raise VideoError(
                f"`{name}` holds more than {limits.max_frames_walked:,} frames",
                "lift the limit with `--max-frames-walked`",
            )
        seconds = np.array([image.info.get("duration", 0) / 1000 for image in self._walk(range(promised))])
        if not len(seconds):
            raise VideoError(f"no picture in `{name}` can be decoded", "the file is damaged")
        if len(seconds) < promised:
            self.notices.append(f"the file promises {promised} pictures and holds {len(seconds)}")
        ends = np.cumsum(seconds if seconds.any() else np.full(len(seconds), _ASSUMED_SECONDS))
        self.starts, self.end_seconds, self.keys = np.append(0.0, ends[:-1]), float(ends[-1]), np.array([0])
        self.info = VideoInfo(
            path=name,
            width=self._image.width,
            height=self._image.height,
            duration_seconds=self.end_seconds,
            fps=len(seconds) / self.end_seconds if len(seconds) > 1 else None,
            rotation_degrees=0,
            codec="webp",
            container="webp",
            has_audio=False,
            comment=None,
            frame_count=len(seconds),
            start_seconds=0.0,
        )

    def pictures(self, ranks: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> Generator[tuple[int, int]]:
        for index, image in enumerate(self._walk(ranks.tolist())):
            resized = image.convert("RGBA").resize(out.shape[2:0:-1], Image.Resampling.BICUBIC)
            out[index] = flattened(np.asarray(resized))
            yield index, int(ranks[index])

    def _walk(self, numbers: range | list[int]) -> Iterator[Image.Image]:
        """Some pictures, as far as they can be decoded."""
        for number in numbers:
            self._on_packet()
            try:
                self._image.seek(number)
                self._image.load()
            except _BROKEN:
                return
            yield self._image
