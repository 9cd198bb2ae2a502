"""A4, A6, A8, A36 and the extra probes: every container and every odd clock gives the right frame at the right time."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_videos import make, numbers

from wq_cli.config import Sampling
from wq_cli.video import Clip, probe, read
from wq_cli.video.timeline import filled

QUIET_X265 = {"x265-params": "log-level=none:pools=none:frame-threads=1"}
B_FRAMES = {"x264-params": "bframes=2:b-adapt=0"}


def read_all(path: Path) -> Clip:
    return read(path, Sampling(frames=100), default_frames=8)


@pytest.mark.parametrize(
    ("name", "codec", "pix", "fps", "options"),
    [
        pytest.param("a.mp4", "libx264", "yuv420p", 10, {}, id="mp4"),
        pytest.param("a.mov", "prores_ks", "yuv422p10le", 10, {}, id="mov"),
        pytest.param("a.webm", "libvpx-vp9", "yuv420p", 10, {}, id="A4-webm"),
        pytest.param("a.webm", "libvpx", "yuv420p", 10, {"auto-alt-ref": "1", "lag-in-frames": "5"}, id="A4-vp8"),
        pytest.param("a.mkv", "libx264", "yuv420p", 10, {}, id="A4-mkv"),
        pytest.param("a.mkv", "libx265", "yuv420p", 10, QUIET_X265, id="A4-mkv-hevc"),
        pytest.param("a.mkv", "ffv1", "yuv420p", 10, {}, id="A4-mkv-ffv1"),
        pytest.param("a.ts", "libx264", "yuv420p", 10, {}, id="A4-ts"),
        pytest.param("a.m2ts", "libx264", "yuv420p", 10, {}, id="A4-m2ts"),
        pytest.param("a.asf", "mpeg4", "yuv420p", 10, {}, id="A4-asf"),
        pytest.param("a.wmv", "wmv2", "yuv420p", 10, {}, id="A4-wmv"),
        pytest.param("a.flv", "flv", "yuv420p", 10, {}, id="A4-flv"),
        pytest.param("a.ivf", "libvpx-vp9", "yuv420p", 10, {}, id="A4-ivf"),
        pytest.param("a.avi", "libx264", "yuv420p", 10, B_FRAMES, id="A6-avi-h264"),
        pytest.param("a.avi", "mpeg4", "yuv420p", 10, {"bf": "2"}, id="A6-avi-mpeg4"),
        pytest.param("a.avi", "mjpeg", "yuvj420p", 10, {}, id="A6-avi-mjpeg"),
        pytest.param("a.h264", "libx264", "yuv420p", 10, B_FRAMES, id="A6-raw-h264"),
        pytest.param("a.hevc", "libx265", "yuv420p", 10, QUIET_X265, id="A6-raw-hevc"),
        pytest.param("a.m2v", "mpeg2video", "yuv420p", 25, {"bf": "2"}, id="A6-raw-mpeg2"),
        pytest.param("a.mpg", "mpeg2video", "yuv420p", 25, {}, id="A8-mpeg-ps"),
        pytest.param("b.mpg", "mpeg2video", "yuv420p", 25, {"bf": "2"}, id="A8-mpeg-ps-b"),
        pytest.param("a.mxf", "mpeg2video", "yuv420p", 25, {"bf": "2"}, id="mxf"),
        pytest.param("a.y4m", "rawvideo", "yuv420p", 10, {}, id="y4m"),
        pytest.param("a.gif", "gif", "rgb8", 10, {}, id="A16-gif"),
        pytest.param("a.apng", "apng", "rgb24", 10, {}, id="A16-apng"),
    ],
)
def test_every_picture_at_its_time(
    tmp_path: Path, name: str, codec: str, pix: str, fps: int, options: dict[str, str]
) -> None:
    path = make(tmp_path / name, n=14, codec=codec, pix=pix, fps=fps, options=options, gop=6)
    clip = read_all(path)
    assert numbers(clip.frames) == list(range(14))
    assert np.allclose(clip.pts_seconds, np.arange(14) / fps, atol=1.1e-3)
    assert clip.info.frame_count == 14
    assert clip.info.duration_seconds == pytest.approx(14 / fps, abs=1.1e-3)
    assert clip.info.fps == pytest.approx(fps, rel=0.01)
    five = read(path, Sampling(frames=5), default_frames=8)
    assert numbers(five.frames) == [1, 4, 7, 9, 12]
    assert np.allclose(five.pts_seconds, np.array([1, 4, 7, 9, 12]) / fps, atol=1.1e-3)


def test_a4_fragmented_mp4(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=10, gop=4, mux={"movflags": "frag_keyframe+empty_moov"})
    assert numbers(read_all(path).frames) == list(range(10))
    assert probe(path).duration_seconds == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4", "a.ts"])
def test_a8_late_start(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / name, n=10, pts=range(500, 510), time_base=Fraction(1, 10))
    clip = read_all(path)
    assert clip.pts_seconds == pytest.approx(np.arange(10) / 10, abs=1e-6)
    assert clip.info.duration_seconds == pytest.approx(1.0, abs=1e-6)
    assert numbers(read(path, Sampling(frames=1, start=0.5, end=0.6), default_frames=8).frames) == [5]
    if name == "a.mkv":
        assert clip.info.start_seconds == pytest.approx(50.0)


def test_a8_negative_start_that_the_file_cuts_off(tmp_path: Path) -> None:
    """An MP4 edit list hides what lies before 0; those pictures are decoded and not shown."""
    path = make(tmp_path / "a.mp4", n=10, pts=range(-5, 5), time_base=Fraction(1, 10))
    clip = read_all(path)
    assert numbers(clip.frames) == [5, 6, 7, 8, 9]
    assert clip.pts_seconds == pytest.approx(np.arange(5) / 10)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_variable_rate(tmp_path: Path, name: str) -> None:
    ticks = [0, 1, 2, 3, 30, 80, 100]
    path = make(tmp_path / name, n=7, pts=ticks, time_base=Fraction(1, 100))
    assert read_all(path).pts_seconds == pytest.approx(np.array(ticks) / 100, abs=1e-3)
    for second, number in ((0.015, 1), (0.029, 2), (0.25, 3), (0.79, 4), (0.81, 5), (1.0, 6)):
        clip = read(path, Sampling(frames=1, start=second - 0.0005, end=second + 0.0005), default_frames=8)
        assert numbers(clip.frames)[-1] == number
    held = read(path, Sampling(frames=4, start=0.1, end=0.9), default_frames=8)
    assert numbers(held.frames) == [3, 4, 5]
    assert held.span_seconds.tolist() == pytest.approx(np.array([[0.1, 0.3], [0.3, 0.8], [0.8, 0.9]]))


def test_equal_timestamps(tmp_path: Path) -> None:
    path = make(
        tmp_path / "a.mkv",
        n=6,
        codec="mjpeg",
        pix="yuvj420p",
        packet_pts=[0, 10, 10, 10, 20, 30],
        time_base=Fraction(1, 100),
    )
    clip = read_all(path)
    assert numbers(clip.frames) == [0, 1, 2, 3, 4, 5]
    assert clip.pts_seconds == pytest.approx([0, 0.1, 0.1, 0.1, 0.2, 0.3])
    assert numbers(read(path, Sampling(frames=4), default_frames=8).frames) == [0, 3, 4, 5]


def test_backward_timestamps(tmp_path: Path) -> None:
    """A codec that cannot reorder shows pictures in file order; a clock that jumps back stands still meanwhile."""
    path = make(tmp_path / "a.mkv", n=8, codec="mjpeg", pix="yuvj420p")
    data = bytearray(path.read_bytes())
    at = -1
    for _ in range(4):
        at = data.index(b"\xff\xd8\xff", at + 1)
    assert data[at - 3 : at - 1] == (300).to_bytes(2, "big")  # time of picture 3 in its block header
    data[at - 3 : at - 1] = (150).to_bytes(2, "big")
    path.write_bytes(data)
    clip = read_all(path)
    assert numbers(clip.frames) == list(range(8))
    assert clip.pts_seconds == pytest.approx([0, 0.1, 0.2, 0.2, 0.4, 0.5, 0.6, 0.7])


@pytest.mark.parametrize("pieces", [2, 3])
def test_time_restarts_where_files_are_joined(tmp_path: Path, pieces: int) -> None:
    piece = make(tmp_path / "a.ts", n=10).read_bytes()
    joined = tmp_path / "joined.ts"
    joined.write_bytes(piece * pieces)
    clip = read_all(joined)
    assert numbers(clip.frames) == list(range(10)) * pieces
    assert clip.pts_seconds == pytest.approx(np.arange(10 * pieces) / 10)
    assert clip.info.duration_seconds == pytest.approx(pieces)


def test_clock_leaps_forward_where_broadcasts_are_joined(tmp_path: Path) -> None:
    early = make(tmp_path / "a.ts", n=10)
    late = make(tmp_path / "b.ts", n=10, pts=range(36_000, 36_010), time_base=Fraction(1, 10))
    joined = tmp_path / "joined.ts"
    joined.write_bytes(early.read_bytes() + late.read_bytes())
    clip = read_all(joined)
    assert numbers(clip.frames) == list(range(10)) * 2
    assert clip.pts_seconds == pytest.approx(np.arange(20) / 10)


@pytest.mark.parametrize(
    ("name", "codec", "fps"), [("a.mp4", "libx264", 1000), ("a.mkv", "mpeg4", 1000), ("a.mp4", "libx264", 240)]
)
def test_fast_cameras(tmp_path: Path, name: str, codec: str, fps: int) -> None:
    path = make(tmp_path / name, n=50, codec=codec, fps=fps)
    assert numbers(read(path, Sampling(frames=10), default_frames=8).frames) == [2, 7, 12, 17, 22, 27, 32, 37, 42, 47]


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_one_picture_every_30_seconds(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / name, n=6, fps=Fraction(1, 30), pts=range(6), time_base=Fraction(30))
    clip = read(path, Sampling(frames=60), default_frames=8)
    assert numbers(clip.frames) == [0, 1, 2, 3, 4, 5]
    assert clip.pts_seconds == pytest.approx(np.arange(6) * 30)
    assert numbers(read(path, Sampling(frames=1, start=70, end=80), default_frames=8).frames) == [2]


@pytest.mark.parametrize(
    ("name", "codec", "pix"),
    [("a.mp4", "libx264", "yuv420p"), ("a.webm", "libvpx-vp9", "yuv420p"), ("a.gif", "gif", "rgb8")],
    ids=["mp4", "webm", "A16-gif"],
)
def test_single_picture(tmp_path: Path, name: str, codec: str, pix: str) -> None:
    clip = read(make(tmp_path / name, n=1, codec=codec, pix=pix), Sampling(frames=4), default_frames=8)
    assert clip.frames.shape[0] == 1
    assert clip.pts_seconds.tolist() == [0.0]
    assert clip.info.fps is None
    assert clip.notices == ("only 1 frame available, 4 asked for: each is used once",)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.ts", "a.gif"])
def test_a36_five_of_five(tmp_path: Path, name: str) -> None:
    kind: dict[str, Any] = {"codec": "gif", "pix": "rgb8"} if name == "a.gif" else {}
    clip = read(make(tmp_path / name, n=5, **kind), Sampling(frames=5), default_frames=8)
    assert numbers(clip.frames) == [0, 1, 2, 3, 4]
    assert clip.notices == ()


def test_a36_the_last_picture_can_be_reached(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=30)
    assert numbers(read(path, Sampling(frames=1, start=2.9), default_frames=8).frames) == [29]


def test_single_missing_times_are_filled_in() -> None:
    none = np.iinfo(np.int64).min
    pts = np.array([none, 10, none, 30, none, none])
    dts = np.array([none, 0, 15, 20, none, none])
    lengths = np.array([10, 10, 10, 12, 10, 10])
    assert filled(pts, dts, lengths).tolist() == [10, 10, 15, 30, 42, 52]
