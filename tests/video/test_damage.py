"""A9, A11, A34: truncated and damaged files give what decodes, say what is lost, and never print or hang."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from small_videos import make, numbers

from wq_cli.config import Sampling
from wq_cli.errors import VideoError, WqError
from wq_cli.video import read

N, GOP = 60, 12
REGULAR = {"sc_threshold": "0"}  # no key pictures of the encoder's own choice
ALL = Sampling(frames=N)


def packets(path: Path) -> list[tuple[int, int, bool]]:
    """Position, size and key flag of each packet."""
    with av.open(str(path)) as container:
        return [(p.pos, p.size, p.is_keyframe) for p in container.demux(video=0) if p.size]


def damage(path: Path, start: int, length: int) -> None:
    data = bytearray(path.read_bytes())
    data[start : start + length] = np.random.default_rng(1).integers(0, 256, length, dtype=np.uint8).tobytes()
    path.write_bytes(data)


def test_a9_half_downloaded_mp4(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=N)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 6 // 10])
    with pytest.raises(VideoError, match=r"is incomplete or not a video$"):
        read(path, ALL, default_frames=8)


@pytest.mark.parametrize(
    ("name", "mux"),
    [("a.mp4", {"movflags": "faststart"}), ("f.mp4", {"movflags": "frag_keyframe+empty_moov"}), ("a.mkv", {}),
     ("a.ts", {}), ("a.flv", {}), ("a.avi", {})],
    ids=["faststart-mp4", "fragmented-mp4", "mkv", "ts", "flv", "avi"],
)  # fmt: skip
def test_a9_a_cut_file_gives_its_beginning(tmp_path: Path, name: str, mux: dict[str, str]) -> None:
    path = make(tmp_path / name, n=N, gop=GOP, mux=mux)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 7 // 10])
    clip = read(path, ALL, default_frames=8)
    got = numbers(clip.frames)
    assert 3 <= len(got) < N
    assert got[:-3] == list(range(len(got) - 3))  # the last ones may lack pictures they refer to
    assert np.allclose(clip.pts_seconds[:-3], np.array(got[:-3]) / 10, atol=2e-3)
    assert clip.notices


def test_a9_a_cut_mp4_says_how_much_is_missing(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=N, gop=GOP, mux={"movflags": "faststart"})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    clip = read(path, Sampling(frames=2), default_frames=8)
    assert clip.notices[0].startswith("the file promises 6.0 s of video and holds ")


@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        pytest.param("a.mp4", "libx264", REGULAR, id="A11-h264"),
        pytest.param(
            "a.mp4",
            "libx265",
            {"x265-params": "log-level=none:pools=none:frame-threads=1:no-open-gop=1"},
            id="A11-hevc",
        ),
        pytest.param("a.mp4", "libsvtav1", {"preset": "12"}, id="A11-av1"),
        pytest.param("a.mov", "libvpx-vp9", {}, id="A11-vp9"),
    ],
)
def test_damage_in_the_middle(tmp_path: Path, name: str, codec: str, options: dict[str, str]) -> None:
    container = "mp4" if name == "a.mov" else None
    path = make(tmp_path / name, n=N, gop=GOP, codec=codec, options=options, container=container)
    where = packets(path)
    whole = numbers(read(path, ALL, default_frames=8).frames)
    keys = [i for i, (_, _, is_key) in enumerate(where) if is_key]
    bad = next(i for i in range(keys[1] + 2, keys[2]) if where[i][1] > 8)
    damage(path, where[bad][0], where[bad][1])
    clip = read(path, ALL, default_frames=8)
    got = numbers(clip.frames)
    shown = np.round(clip.pts_seconds * 10).astype(int).tolist()
    assert set(range(keys[1])) <= set(shown)  # everything before
    assert set(range(keys[2], N)) <= set(shown)  # and everything from the next key picture on
    assert [whole[k] for k in shown if k < keys[1] or k >= keys[2]] == [
        number for k, number in zip(shown, got, strict=True) if k < keys[1] or k >= keys[2]
    ]
    if len(got) < N:
        assert f"{N - len(got)} of {N} frames cannot be decoded and are left out" in clip.notices[-1]


def test_a11_damaged_key_picture(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=N, gop=GOP, options=REGULAR)
    where = packets(path)
    damage(path, where[GOP][0], where[GOP][1])
    clip = read(path, ALL, default_frames=8)
    assert numbers(clip.frames) == [*range(12), *range(24, N)]
    assert clip.notices == ("12 of 60 frames cannot be decoded and are left out (damage near 1.2 s)",)
    assert clip.span_seconds[11].tolist() == pytest.approx([1.1, 2.4])
    edges = clip.span_seconds
    assert edges[1:, 0].tolist() == edges[:-1, 1].tolist()  # still without gaps
    few = read(path, Sampling(frames=5), default_frames=8)  # 6, 18, 30, 42, 54; 18 lies in the lost stretch
    assert numbers(few.frames) == [6, 11, 30, 42, 54]
    assert few.pts_seconds == pytest.approx([0.6, 1.1, 3.0, 4.2, 5.4])
    assert few.notices == ("1 of 5 frames cannot be decoded: the last good ones before are used (damage near 1.2 s)",)


def test_first_key_picture_damaged(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=N, gop=GOP, options=REGULAR)
    where = packets(path)
    damage(path, where[0][0], where[0][1])
    clip = read(path, ALL, default_frames=8)
    assert numbers(clip.frames) == list(range(12, N))
    assert np.diff(clip.pts_seconds) == pytest.approx(0.1)
    assert clip.info.start_seconds + clip.pts_seconds[0] == pytest.approx(1.2)


def test_nothing_can_be_decoded(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=5)
    where = packets(path)
    damage(path, where[0][0], sum(size for _, size, _ in where))
    with pytest.raises(VideoError, match=r"no picture in `.*` can be decoded"):
        read(path, ALL, default_frames=8)


def test_a34_nothing_is_printed(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=N, gop=GOP)
    where = packets(path)
    damage(path, where[14][0], 400)
    code = (
        "import sys; from wq_cli.video import read; from wq_cli.config import Sampling;"
        "read(sys.argv[1], Sampling(frames=60), default_frames=8)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, timeout=60, check=True)
    assert result.stdout == b"" and result.stderr == b""


@pytest.mark.parametrize("seed", range(3))
def test_mutated_files_end_in_frames_or_one_clear_error(
    tmp_path: Path, seed: int, capfd: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(seed)
    originals = [
        make(tmp_path / name, n=8, gop=4, codec=codec, pix=pix, fps=25).read_bytes()
        for name, codec, pix in (
            ("a.mp4", "libx264", "yuv420p"),
            ("a.mkv", "mpeg4", "yuv420p"),
            ("a.webm", "libvpx-vp9", "yuv420p"),
            ("a.avi", "mjpeg", "yuvj420p"),
            ("a.ts", "mpeg2video", "yuv420p"),
            ("a.gif", "gif", "rgb8"),
        )
    ]
    path = tmp_path / "mutated"
    for _ in range(60):
        data = bytearray(originals[rng.integers(len(originals))])
        for _ in range(rng.integers(1, 12)):
            at = int(rng.integers(len(data)))
            match rng.integers(4):
                case 0:
                    data[at] = int(rng.integers(256))
                case 1:
                    data[at : at + 4] = int(rng.integers(2**32)).to_bytes(4, "big")
                case 2:
                    del data[at : at + int(rng.integers(1, 64))]
                case _:
                    data[at:at] = bytes(rng.integers(0, 256, int(rng.integers(1, 32)), dtype=np.uint8))
        path.write_bytes(data)
        try:
            clip = read(path, Sampling(frames=4), default_frames=4, max_side=64)
        except WqError as error:
            assert "\n" not in error.message and not error.message.endswith(".")
            continue
        assert 1 <= len(clip.frames) <= 4
        assert np.isfinite(clip.pts_seconds).all() and (np.diff(clip.pts_seconds) >= 0).all()
        assert np.isfinite(clip.span_seconds).all()
    assert capfd.readouterr().err == ""  # PyAV prints what it cannot raise, such as seeks before the beginning
