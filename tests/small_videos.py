"""Small inputs built on the spot: each frame carries its number in a form that survives lossy codecs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import pytest

from wq_cli.config import Sampling
from wq_cli.errors import VideoError
from wq_cli.video import read

Picture = npt.NDArray[np.uint8]
BITS = 10


def numbered(i: int, width: int = 96, height: int = 64) -> Picture:
    """Green left strip, blue top strip, and the number as black and white blocks across the lower half."""
    picture = np.full((height, width, 3), 60, np.uint8)
    picture[:, : width // 8] = (0, 255, 0)
    picture[: height // 4] = (0, 0, 255)
    for bit in range(BITS):
        picture[height // 2 :, width * bit // BITS : width * (bit + 1) // BITS] = 255 if i >> bit & 1 else 0
    return picture


def number_of(picture: Picture) -> int:
    """The number that `numbered` drew, at any size."""
    height, width, _ = picture.shape
    block = width / BITS
    row = picture[height * 3 // 4].mean(axis=1)
    return sum(int(row[int((bit + 0.5) * block)] > 127) << bit for bit in range(BITS))


def numbers(pictures: Picture) -> list[int]:
    return [number_of(picture) for picture in pictures]


def make(
    path: Path | str,
    n: int = 10,
    codec: str = "libx264",
    pix: str = "yuv420p",
    width: int = 96,
    height: int = 64,
    fps: int | Fraction = 10,
    pts: Sequence[int] | None = None,
    packet_pts: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    options: dict[str, str] | None = None,
    mux: dict[str, str] | None = None,
    container: str | None = None,
    gop: int | None = None,
    comment: str | None = None,
    draw: Callable[[int, int, int], Picture] = numbered,
    prepare: Callable[[av.VideoStream], None] | None = None,
) -> Path:
    """Encodes n pictures.

    `pts` are in units of `time_base`; so are `packet_pts`, for times that no encoder takes.
    """
    with av.open(str(path), "w", format=container, options=mux or {}) as output:
        if comment is not None:
            output.metadata["comment"] = comment
        stream = output.add_stream(codec, rate=fps, options=options or {})
        stream.width, stream.height, stream.pix_fmt = width, height, pix
        stream.codec_context.thread_count = 1
        if gop is not None:
            stream.codec_context.gop_size = gop
        if time_base is not None:
            stream.codec_context.time_base = time_base
        if prepare is not None:
            prepare(stream)
        packets: list[av.Packet] = []
        for i in range(n):
            frame = av.VideoFrame.from_ndarray(draw(i, width, height), format="rgb24")
            frame.pts = i if pts is None else pts[i]
            frame.time_base = 1 / Fraction(fps) if pts is None else time_base
            packets += stream.encode(frame)
        packets += stream.encode(None)
        for i, packet in enumerate(packets):
            if packet_pts is not None:
                packet.pts = packet.dts = packet_pts[i]
                packet.time_base = time_base
            output.mux(packet)
    return Path(path)


def set_display_matrix(source: Path, target: Path, a: int, b: int, c: int, d: int) -> Path:
    """Copies an MP4 with the matrix of its first track replaced: (x, y) is shown at (a x + c y, b x + d y)."""
    data = bytearray(source.read_bytes())
    box = data.find(b"tkhd")
    at = box + 4 + 4 + (32 if data[box + 4] == 1 else 20) + 16
    data[at : at + 36] = struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    target.write_bytes(data)
    return target


def error_of(path: Path | str, **kwargs: Any) -> VideoError:
    """The error that reading ends in, checked to be one line in house style."""
    with pytest.raises(VideoError) as caught:
        read(path, Sampling(frames=10), default_frames=8, **kwargs)
    for text in (caught.value.message, caught.value.hint or ""):
        assert "\n" not in text and not text.endswith(".")
        text.encode("utf-8")  # can be printed on a strict stream
    assert caught.value.exit_code == 1
    return caught.value
