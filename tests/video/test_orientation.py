"""A1: phone clips carry their turn in the container; also mirrors, non-square pixels, odd and changing sizes."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from small_videos import Picture, make, numbers, set_display_matrix

from wq_cli.config import Sampling
from wq_cli.video import probe, read

WIDTH, HEIGHT = 64, 48
ONE = Sampling(frames=1)


def corners(i: int, width: int, height: int) -> Picture:
    """Four quarters: red, green / blue, white."""
    picture = np.zeros((height, width, 3), np.uint8)
    picture[: height // 2, : width // 2] = (255, 0, 0)
    picture[: height // 2, width // 2 :] = (0, 255, 0)
    picture[height // 2 :, : width // 2] = (0, 0, 255)
    picture[height // 2 :, width // 2 :] = (255, 255, 255)
    return picture


def quarters(picture: Picture) -> str:
    """Names of the quarters in reading order."""
    height, width, _ = picture.shape
    names = {(True, False, False): "R", (False, True, False): "G", (False, False, True): "B", (True, True, True): "W"}
    centres = [(height // 4, width // 4), (height // 4, width * 3 // 4)]
    centres += [(height * 3 // 4, width // 4), (height * 3 // 4, width * 3 // 4)]
    return "".join(names[tuple(bool(level > 127) for level in picture[y, x])] for y, x in centres)


@pytest.mark.parametrize(
    ("matrix", "expected", "degrees"),
    [
        pytest.param((1, 0, 0, 1), "RGBW", 0, id="upright"),
        pytest.param((0, 1, -1, 0), "BRWG", 90, id="A1-90"),
        pytest.param((-1, 0, 0, -1), "WBGR", 180, id="A1-180"),
        pytest.param((0, -1, 1, 0), "GWRB", 270, id="A1-270"),
        pytest.param((-1, 0, 0, 1), "GRWB", 0, id="mirrored"),
        pytest.param((1, 0, 0, -1), "BWRG", 180, id="upside-down-mirrored"),
        pytest.param((0, 1, 1, 0), "RBGW", 270, id="transposed"),
        pytest.param((0, -1, -1, 0), "WGBR", 90, id="transposed-other-way"),
    ],
)
def test_display_matrix(tmp_path: Path, matrix: tuple[int, int, int, int], expected: str, degrees: int) -> None:
    plain = make(tmp_path / "a.mp4", n=3, width=WIDTH, height=HEIGHT, draw=corners, pix="yuv444p")
    turned = set_display_matrix(plain, tmp_path / "r.mp4", *matrix)
    clip = read(turned, ONE, default_frames=1)
    assert quarters(clip.frames[0]) == expected
    size = (HEIGHT, WIDTH) if matrix[0] == 0 else (WIDTH, HEIGHT)
    assert (clip.info.width, clip.info.height) == size
    assert clip.frames.shape == (1, size[1], size[0], 3)
    assert clip.info.rotation_degrees == degrees


def test_turned_and_shrunk(tmp_path: Path) -> None:
    plain = make(tmp_path / "a.mp4", n=1, width=WIDTH, height=HEIGHT, draw=corners, pix="yuv444p")
    turned = set_display_matrix(plain, tmp_path / "r.mp4", 0, 1, -1, 0)
    clip = read(turned, ONE, default_frames=1, max_side=32)
    assert clip.frames.shape == (1, 32, 24, 3)
    assert quarters(clip.frames[0]) == "BRWG"


@pytest.mark.parametrize(
    ("aspect", "size"),
    [
        pytest.param(Fraction(2), (128, 48), id="2:1"),
        pytest.param(Fraction(1, 2), (32, 48), id="1:2"),
        pytest.param(Fraction(64, 45), (91, 48), id="pal-wide"),
        pytest.param(Fraction(5000), (64, 48), id="absurd-is-ignored"),
    ],
)
def test_non_square_pixels(tmp_path: Path, aspect: Fraction, size: tuple[int, int]) -> None:
    def set_aspect(stream: av.VideoStream) -> None:
        stream.codec_context.sample_aspect_ratio = aspect

    path = make(tmp_path / "a.mkv", n=1, width=WIDTH, height=HEIGHT, draw=corners, prepare=set_aspect)
    clip = read(path, ONE, default_frames=1)
    assert (clip.info.width, clip.info.height) == size
    assert quarters(clip.frames[0]) == "RGBW"


@pytest.mark.parametrize(
    ("width", "height", "codec", "pix"),
    [
        (65, 49, "ffv1", "yuv420p"),
        (33, 16, "ffv1", "yuv422p"),
        (17, 17, "ffv1", "yuv420p10le"),
        (1, 1, "png", "rgb24"),
        (3, 64, "png", "rgba"),
    ],
)
def test_odd_sizes(tmp_path: Path, width: int, height: int, codec: str, pix: str) -> None:
    path = make(tmp_path / "a.nut", n=2, codec=codec, pix=pix, width=width, height=height, draw=corners)
    clip = read(path, Sampling(frames=2), default_frames=1)
    assert clip.frames.shape == (2, height, width, 3)
    if min(width, height) > 8:
        assert quarters(clip.frames[1]) == "RGBW"


def test_size_changes_midway(tmp_path: Path) -> None:
    small = make(tmp_path / "s.ts", n=10, width=96, height=64)
    large = make(tmp_path / "l.ts", n=10, width=192, height=128)
    joined = tmp_path / "j.ts"
    joined.write_bytes(small.read_bytes() + large.read_bytes())
    clip = read(joined, Sampling(frames=20), default_frames=1)
    assert clip.frames.shape == (20, 64, 96, 3)
    assert numbers(clip.frames) == [*range(10), *range(10)]


def test_shrinking_keeps_the_aspect_and_never_grows(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=1, width=128, height=64)
    assert read(path, ONE, default_frames=1, max_side=50).frames.shape == (1, 25, 50, 3)
    assert read(path, ONE, default_frames=1, max_side=500).frames.shape == (1, 64, 128, 3)
    assert (probe(path).width, probe(path).height) == (128, 64)
