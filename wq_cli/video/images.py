"""A folder of pictures, read as a video with one picture per tick of a fixed rate."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from wq_cli.config import Sampling
from wq_cli.errors import VideoError
from wq_cli.video.clip import Clip, Limits, VideoInfo
from wq_cli.video.picture import fit, flattened
from wq_cli.video.sample import choose
from wq_cli.video.source import printable

_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
_ASSUMED_FPS = 1.0


def natural_key(name: str) -> list[tuple[int, str]]:
    """Sort key by which `frame10.png` comes after `frame9.png`."""
    return [(int(digits or 0), text) for digits, text in re.findall(r"([0-9]+)|([^0-9]+)", name.casefold())]


def list_pictures(folder: str, limits: Limits) -> list[str]:
    """Paths of the pictures in a folder, in natural order.

    Raises:
        VideoError: There is none, there are too many, or the folder cannot be read.
    """
    name = printable(folder)
    try:
        names = [entry for entry in os.listdir(folder) if entry.lower().endswith(_SUFFIXES) and entry[0] != "."]
    except PermissionError:
        raise VideoError(f"no permission to read the folder `{name}`") from None
    if not names:
        raise VideoError(f"the folder `{name}` holds no pictures", f"it may hold {', '.join(_SUFFIXES)}")
    if len(names) > limits.max_frames_walked:
        raise VideoError(
            f"the folder `{name}` holds more than {limits.max_frames_walked:,} pictures",
            "lift the limit with `--max-frames-walked`",
        )
    return [os.path.join(folder, entry) for entry in sorted(names, key=natural_key)]


def probe_folder(folder: str, limits: Limits, fps: float = _ASSUMED_FPS) -> VideoInfo:
    """Facts about a folder of pictures shown at a rate; the first picture gives the size."""
    paths = list_pictures(folder, limits)
    with _open(paths[0], limits) as picture:
        width, height = ImageOps.exif_transpose(picture).size
        codec = (picture.format or "unknown").lower()
    return VideoInfo(
        path=printable(folder),
        width=width,
        height=height,
        duration_seconds=len(paths) / fps,
        fps=fps if len(paths) > 1 else None,
        rotation_degrees=0,
        codec=codec,
        container="folder",
        has_audio=False,
        comment=None,
        frame_count=len(paths),
        start_seconds=0.0,
    )


def read_folder(
    folder: str,
    sampling: Sampling,
    *,
    default_frames: int,
    max_side: int | None,
    limits: Limits,
    on_progress: Callable[[int, int], None] | None,
) -> Clip:
    """Samples a folder of pictures; `sampling.fps` is the rate at which they were taken.

    Raises:
        VideoError: The folder holds no pictures, or one of them cannot be read.
        UsageError: The range of time lies outside the video.
    """
    notices: list[str] = []
    if sampling.fps is None:
        notices.append(f"a folder has no frame rate: {_ASSUMED_FPS:g} picture per second is assumed (`--fps` sets it)")
    fps = sampling.fps or _ASSUMED_FPS
    info = probe_folder(folder, limits, fps)
    paths = list_pictures(folder, limits)
    choice = choose(np.arange(len(paths)) / fps, len(paths) / fps, sampling, default_frames)
    width, height = fit(info.width, info.height, max_side)
    frames = np.empty((len(choice.ranks), height, width, 3), np.uint8)
    for index, rank in enumerate(choice.ranks):
        frames[index] = _read_picture(paths[rank], width, height, limits)
        if on_progress:
            on_progress(index + 1, len(frames))
    return Clip(
        frames=frames,
        pts_seconds=choice.ranks / fps,
        span_seconds=np.stack((choice.edges[:-1], choice.edges[1:]), axis=1),
        info=info,
        requested=choice.requested,
        notices=(*notices, *choice.notices),
    )


def _read_picture(path: str, width: int, height: int, limits: Limits) -> npt.NDArray[np.uint8]:
    with _open(path, limits) as picture:
        try:
            upright = ImageOps.exif_transpose(picture).convert("RGBA")
        except (OSError, ValueError, SyntaxError):
            raise VideoError(f"the picture `{printable(path)}` is damaged") from None
    return flattened(np.asarray(upright.resize((width, height), Image.Resampling.BICUBIC)))


def _open(path: str, limits: Limits) -> Image.Image:
    name = printable(path)
    try:
        picture = Image.open(path)
    except PermissionError:
        raise VideoError(f"no permission to read `{name}`") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise VideoError(f"`{name}` is damaged or not a picture") from None
    if picture.width * picture.height > limits.max_pixels:
        picture.close()
        raise VideoError(
            f"`{name}` has {picture.width * picture.height:,} pixels, more than {limits.max_pixels:,}",
            "lift the limit with `--max-pixels`",
        )
    return picture
