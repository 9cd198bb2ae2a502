"""A folder of pictures as frames in time, one per tick of a fixed rate."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Generator

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from wq_cli.config import Limits
from wq_cli.errors import VideoError
from wq_cli.video.clip import VideoInfo
from wq_cli.video.container import check_pixels
from wq_cli.video.picture import flattened
from wq_cli.video.source import printable

_SUFFIXES = (".png", ".jpg", ".jpeg", ".jfif", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_ASSUMED_FPS = 1.0
# Said by `Limits.max_pixels`, and by an error rather than on the way.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key by which `frame10.png` comes after `frame9.png`."""
    return [(int(digits or 0), text) for digits, text in re.findall(r"([0-9]+)|([^0-9]+)", name.casefold())]


class FolderReel:
    """The pictures of a folder in natural order; the first one that opens gives the size.

    Args:
        folder: Path.
        fps: Rate at which the pictures were taken; 1 per second is assumed, and said, when it is not known.

    Raises:
        VideoError: There is no picture, or none that opens, or too many, or the folder cannot be read.
    """

    def __init__(self, folder: str, limits: Limits, fps: float | None) -> None:
        self._paths = _list_pictures(folder, limits)
        self._limits = limits
        self.damage: set[int] = set()
        self.notices: list[str] = []
        if fps is None:
            fps = _ASSUMED_FPS
            self.notices.append(f"a folder has no frame rate: {fps:g} picture per second is assumed (`--fps` sets it)")
        self.keys = np.arange(len(self._paths))
        self.starts = np.arange(len(self._paths)) / fps
        self.end_seconds = len(self._paths) / fps
        first = next((image for rank in range(len(self._paths)) if (image := self._open(rank))), None)
        if first is None:
            raise VideoError(f"no picture in the folder `{printable(folder)}` can be read", "the files are damaged")
        self.info = VideoInfo(
            path=printable(folder),
            width=first.width,
            height=first.height,
            duration_seconds=self.end_seconds,
            fps=fps if len(self._paths) > 1 else None,
            rotation_degrees=0,
            codec="pictures",
            container="folder",
            has_audio=False,
            comment=None,
            frame_count=len(self._paths),
            start_seconds=0.0,
        )

    def pictures(self, ranks: npt.NDArray[np.int64], out: npt.NDArray[np.uint8]) -> Generator[tuple[int, int]]:
        for index, rank in enumerate(ranks.tolist()):
            image = self._open(rank)
            if image is not None:
                resized = image.resize(out.shape[2:0:-1], Image.Resampling.BICUBIC)
                out[index] = flattened(np.asarray(resized))
                yield index, rank

    def _open(self, rank: int) -> Image.Image | None:
        """The picture upright as RGBA, or None for one that is damaged."""
        path = self._paths[rank]
        try:
            with Image.open(path) as file:
                check_pixels(file.width, file.height, self._limits, printable(path))
                image = ImageOps.exif_transpose(file)
                if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip at 255
                    image = Image.fromarray((np.asarray(image, np.int64) >> 8).astype(np.uint8))
                return image.convert("RGBA")
        except Image.DecompressionBombError:
            raise VideoError(f"`{printable(path)}` is larger than Pillow opens", "shrink the picture") from None
        except (OSError, ValueError, SyntaxError):
            self.damage.add(rank)
            return None


def _list_pictures(folder: str, limits: Limits) -> list[str]:
    name = printable(folder)
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.name.lower().endswith(_SUFFIXES) and entry.name[0] != "." and entry.is_file()
            ]
    except PermissionError:
        raise VideoError(f"no permission to read the folder `{name}`") from None
    if not names:
        raise VideoError(f"the folder `{name}` holds no pictures", f"known are {', '.join(_SUFFIXES)}")
    if len(names) > limits.max_frames_walked:
        raise VideoError(
            f"the folder `{name}` holds more than {limits.max_frames_walked:,} pictures",
            "lift the limit with `--max-frames-walked`",
        )
    return [os.path.join(folder, entry) for entry in sorted(names, key=natural_key)]
