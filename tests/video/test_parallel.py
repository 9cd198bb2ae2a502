"""Several threads give the frames, notices and errors of one, and none of them outlives the reading."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_videos import make, numbers, set_display_matrix

from wq_cli.config import Limits, Sampling
from wq_cli.errors import VideoError
from wq_cli.video import Clip, parallel, read, reel
from wq_cli.video.decode import Run
from wq_cli.video.parallel import worker_count

pytestmark = pytest.mark.skipif(not parallel.CAN_SHARE_FILES, reason="needs several readers of one file")

COUNT = 72
REGULAR = {"sc_threshold": "0"}
HEVC = "log-level=none:pools=none:frame-threads=1"
B_FRAMES = {"x264-params": "open-gop=1:bframes=3:b-pyramid=normal:scenecut=0"}


def vfr(folder: Path) -> Path:
    ticks = np.cumsum(np.random.default_rng(0).integers(1, 9, COUNT)).tolist()
    return make(folder / "a.mkv", n=COUNT, gop=6, pts=ticks, time_base=Fraction(1, 100))


def rotated(folder: Path) -> Path:
    return set_display_matrix(make(folder / "a.mp4", n=COUNT, gop=6), folder / "b.mp4", 0, 1, -1, 0)


MAKERS: dict[str, Callable[[Path], Path]] = {
    "B-frames": lambda folder: make(folder / "a.mp4", n=COUNT, gop=6, options=B_FRAMES),
    "B-frames in TS": lambda folder: make(folder / "a.ts", n=COUNT, gop=6, options=B_FRAMES),
    "HEVC": lambda folder: make(folder / "a.mp4", n=COUNT, gop=6, codec="libx265", options={"x265-params": HEVC}),
    "VP9 with alpha": lambda folder: make(folder / "a.webm", n=COUNT, gop=6, codec="libvpx-vp9", pix="yuva420p"),
    "AV1": lambda folder: make(folder / "a.mp4", n=COUNT, gop=6, codec="libsvtav1", options={"preset": "12"}),
    "MPEG-2": lambda folder: make(folder / "a.mkv", n=COUNT, gop=6, codec="mpeg2video", options={"bf": "2"}, fps=25),
    "MJPEG": lambda folder: make(folder / "a.avi", n=COUNT, codec="mjpeg", pix="yuvj420p"),
    "intra refresh": lambda folder: make(
        folder / "a.mp4", n=COUNT, options={"x264-params": "intra-refresh=1:keyint=12"}
    ),
    "variable rate": vfr,
    "rotation": rotated,
    "short": lambda folder: make(folder / "a.mp4", n=4, gop=1),
}
SAMPLINGS = (
    Sampling(frames=5),
    Sampling(frames=31),
    Sampling(fps=3.0, start=0.2),
    Sampling(sample="keyframes", frames=8),
    Sampling(sample="scene", frames=5),
)


class Workers:
    """Makes small clips worth several threads, and counts the frames that those gave."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.frames = 0
        self._patch = patch

        def counted(*args: Any) -> Generator[tuple[int, int]]:
            for item in parallel.decoded_in_parallel(*args):
                self.frames += 1
                yield item

        patch.setattr(parallel, "_PIXELS_PER_WORKER", 1)
        patch.setattr(reel, "decoded_in_parallel", counted)
        self.use(3)

    def use(self, cores: int) -> None:
        self._patch.setattr(reel, "available_cores", lambda: cores)


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    before = set(threading.enumerate())
    yield Workers(monkeypatch)
    assert set(threading.enumerate()) == before, "a thread is left"


def same(one: Clip, other: Clip) -> bool:
    arrays = ("frames", "pts_seconds", "span_seconds")
    return (one.info, one.requested, one.notices) == (other.info, other.requested, other.notices) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


def both(path: Path, sampling: Sampling, workers: Workers, **how: Any) -> tuple[Clip, Clip]:
    """By one thread, and by three."""
    workers.use(1)
    alone = read(path, sampling, default_frames=8, **how)
    assert not workers.frames
    workers.use(3)
    return alone, read(path, sampling, default_frames=8, **how)


@pytest.mark.parametrize("kind", list(MAKERS))
def test_same_frames(kind: str, tmp_path: Path, workers: Workers) -> None:
    path = MAKERS[kind](tmp_path)
    given = []
    for sampling in SAMPLINGS:
        for max_side in (None, 40):
            workers.frames = 0
            assert same(*both(path, sampling, workers, max_side=max_side))
            given.append(workers.frames)
    assert any(given) == (kind != "short"), "frames side by side are one run, and one thread's"


def packets(path: Path) -> list[tuple[int, int]]:
    """Position and size of each packet."""
    import av

    with av.open(str(path)) as container:
        return [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]


@pytest.mark.parametrize("bad", [0, 6, 33, 36, COUNT - 1], ids=lambda bad: f"packet-{bad}")
@pytest.mark.parametrize("header_only", [True, False], ids=["header", "all"])
def test_damage_costs_the_same(bad: int, header_only: bool, tmp_path: Path, workers: Workers) -> None:
    """What lies before it comes from the workers, the rest from one decoder that reads all in turn."""
    options = {**REGULAR, "bf": "0"}
    path = make(tmp_path / "a.mp4", n=COUNT, gop=6, options=options)
    whole = numbers(read(path, Sampling(frames=36), default_frames=8).frames)
    at, size = packets(path)[bad]
    data = bytearray(path.read_bytes())
    size = min(size, 12) if header_only else size
    data[at : at + size] = b"\xff" * size
    path.write_bytes(data)
    alone, threaded = both(path, Sampling(frames=36), workers)
    assert same(alone, threaded)
    good = bad // 6 * 6  # frames before the key picture that it needs; every other is read
    got = numbers(threaded.frames)
    assert got[: good // 2] == whole[: good // 2] and got != whole


def test_a_size_that_changes_on_the_way_is_refused_alike(tmp_path: Path, workers: Workers) -> None:
    parts = [make(tmp_path / f"{size}.ts", n=24, gop=6, width=size, height=64, options=REGULAR) for size in (96, 320)]
    path = tmp_path / "a.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    messages = []
    for cores in (1, 3):
        workers.use(cores)
        with pytest.raises(VideoError) as caught:
            read(path, Sampling(frames=16), default_frames=8, limits=Limits(max_pixels=200 * 64))
        messages.append(caught.value.message)
    assert messages[0] == messages[1] and "320x64" in messages[0]
    assert workers.frames


@pytest.mark.parametrize("by", ["packets", "progress"])
def test_ctrl_c_ends_all_threads(by: str, tmp_path: Path, workers: Workers) -> None:
    """The fixture sees that none is left."""
    path = make(tmp_path / "a.mp4", n=COUNT, gop=6)
    left = [COUNT + 20 if by == "packets" else 3]  # beyond the scan, into the decoding

    def stop(*_: int) -> None:
        left[0] -= 1
        if left[0] <= 0:
            raise KeyboardInterrupt

    where: dict[str, Any] = {"on_packet": stop} if by == "packets" else {"on_progress": stop}
    with pytest.raises(KeyboardInterrupt):
        read(path, Sampling(frames=12), default_frames=8, **where)
    assert by == "packets" or workers.frames == 3


def test_progress_comes_in_order(tmp_path: Path, workers: Workers) -> None:
    calls: list[tuple[int, int]] = []
    path = make(tmp_path / "a.mp4", n=COUNT, gop=6)
    read(path, Sampling(frames=12), default_frames=8, on_progress=lambda *done: calls.append(done))
    assert calls == [(i, 12) for i in range(1, 13)] and workers.frames == 12


def test_standard_input_too(tmp_path: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its copy has no name that it could be opened by again."""
    path = make(tmp_path / "a.mkv", n=COUNT, gop=6)
    expected = read(path, Sampling(frames=12), default_frames=8).frames
    workers.frames = 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert np.array_equal(read("-", Sampling(frames=12), default_frames=8, limits=Limits()).frames, expected)
    assert workers.frames == 12


HD, UHD = 1920 * 1080, 3840 * 2160


@pytest.mark.parametrize(
    ("lengths", "pixels", "cores", "expected"),
    [
        pytest.param([1] * 100, HD, 2, 2, id="key-pictures"),
        pytest.param([1] * 100, HD, 64, 8, id="no-more-than-eight"),
        pytest.param([1] * 100, UHD, 64, 4, id="large-pictures-take-memory"),
        pytest.param([50] * 100, HD, 1, 1, id="one-core"),
        pytest.param([1] * 8, 96 * 64, 8, 1, id="done-before-a-thread-starts"),
        pytest.param([1] * 20, HD, 8, 2, id="little-work"),
        pytest.param([1500], HD, 8, 1, id="one-run"),
        pytest.param([250, 10], HD, 2, 1, id="one-run-is-nearly-all"),
        pytest.param([250, 250], HD, 8, 1, id="frame-threads-use-more-cores"),
        pytest.param([250] * 6, HD, 8, 6, id="enough-runs"),
    ],
)
def test_how_many_workers(lengths: list[int], pixels: int, cores: int, expected: int) -> None:
    ends = np.cumsum(lengths)
    runs = [Run(int(end - length), int(end - 1), (0,)) for end, length in zip(ends, lengths, strict=True)]
    assert worker_count(runs, pixels, cores) == expected
