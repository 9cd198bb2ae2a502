"""Seeking, leaving out unreferenced pictures and one pass over everything choose and decode the same frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_videos import make, numbers

from wq_cli.config import Limits, Sampling
from wq_cli.video import decode, read
from wq_cli.video.container import best_stream, open_container
from wq_cli.video.timeline import Timeline, scan

COUNT = 240
FILES: dict[str, dict[str, Any]] = {
    "mp4-gop12": {"name": "a.mp4", "gop": 12},
    "mp4-gop250": {"name": "a.mp4", "gop": 250},
    "mp4-open-gop": {"name": "a.mp4", "gop": 15, "options": {"x264-params": "open-gop=1:bframes=3:b-pyramid=normal"}},
    "mkv-gop30": {"name": "a.mkv", "gop": 30},
    "ts-gop12": {"name": "a.ts", "gop": 12},
    "webm-gop20": {"name": "a.webm", "gop": 20, "codec": "libvpx-vp9", "options": {"cpu-used": "8"}},
    "mkv-mpeg2-open-gop": {"name": "a.mkv", "gop": 12, "codec": "mpeg2video", "options": {"bf": "2"}, "fps": 25},
    "avi-mpeg4-b": {"name": "a.avi", "gop": 12, "codec": "mpeg4", "options": {"bf": "2"}},
    "avi-h264-b": {"name": "a.avi", "gop": 12},
    # No picture is whole: a strip of each is, and the decoder holds pictures back until all strips are.
    "mp4-intra-refresh": {"name": "a.mp4", "options": {"x264-params": "intra-refresh=1:keyint=40"}},
    "avi-mjpeg": {"name": "a.avi", "codec": "mjpeg", "pix": "yuvj420p"},
    "mp4-hevc": {
        "name": "a.mp4",
        "gop": 20,
        "codec": "libx265",
        "options": {"x265-params": "log-level=none:pools=none:frame-threads=1"},
    },
    "mp4-av1": {"name": "a.mp4", "gop": 20, "codec": "libsvtav1", "options": {"preset": "12", "crf": "20"}},
}


class Source:
    """A file and what decoding all of it from the front gives."""

    def __init__(self, folder: Path, name: str, **how: Any) -> None:
        self.path = make(folder / name, n=COUNT, **how)
        with av.open(str(self.path)) as container:
            self.pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        self.fps = how.get("fps", 10)

    def scan(self) -> Timeline:
        with (
            self.path.open("rb") as file,
            open_container(file, Limits(), "a") as container,
        ):
            return scan(container, best_stream(container, Limits(), "a"), Limits(), "a", lambda: None)


@pytest.fixture(scope="module", params=list(FILES))
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    yield Source(tmp_path_factory.mktemp("seek"), **FILES[request.param])


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    count=st.integers(1, 60),
    cut=st.tuples(st.integers(0, COUNT - 2), st.integers(1, COUNT)),
    worth_a_seek=st.sampled_from([0, 64, 10**9]),
)
def test_same_frames_however_they_are_reached(
    source: Source, count: int, cut: tuple[int, int], worth_a_seek: int
) -> None:
    first, stop = cut[0], min(cut[0] + cut[1], COUNT)
    sampling = Sampling(frames=count, start=first / source.fps, end=stop / source.fps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "_WORTH_A_SEEK", worth_a_seek)
        clip = read(source.path, sampling, default_frames=8)
    available = stop - first
    if count >= available:
        expected = list(range(first, stop))
    else:  # frame k is on display in [k, k + 1): the middles in units of frames, rounded down, edges exact in integers
        expected = [first + available * (2 * i + 1) // (2 * count) for i in range(count)]
    assert clip.pts_seconds == pytest.approx(np.array(expected) / source.fps, abs=1e-3)
    assert numbers(clip.frames) == numbers(np.stack([source.pictures[number] for number in expected]))
    for number, picture in zip(expected, clip.frames, strict=True):
        assert np.abs(source.pictures[number].astype(int) - picture).mean() < 2  # the other is scaled less carefully


def test_pictures_that_ffmpeg_takes_for_keys(tmp_path: Path) -> None:
    """In AVI every H.263 picture is called a key picture, which none but the first is."""
    path = make(tmp_path / "a.avi", n=30, codec="h263", width=704, height=576, gop=30)
    with av.open(str(path)) as container:
        assert all(packet.is_keyframe for packet in container.demux(video=0) if packet.size)
    assert numbers(read(path, Sampling(frames=5), default_frames=8).frames) == [3, 9, 15, 21, 27]


def packets_decoded(path: Path, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Packets taken from the file and seeks made, the first picture and the scan apart."""
    taken = seeks = 0
    packets_from, seek = decode.Decoder._packets_from, decode.Decoder._seek

    def counting(self: decode.Decoder, start: int) -> Iterator[Any]:
        nonlocal taken
        for item in packets_from(self, start):
            taken += 1
            yield item

    def counting_seek(self: decode.Decoder, start: int) -> bool:
        nonlocal seeks
        seeks += 1
        return seek(self, start)

    monkeypatch.setattr(decode.Decoder, "_packets_from", counting)
    monkeypatch.setattr(decode.Decoder, "_seek", counting_seek)
    read(path, sampling, default_frames=8)
    return taken, seeks


def test_seeks_where_key_pictures_are_dense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.mp4", n=1000, gop=10)
    taken, seeks = packets_decoded(path, Sampling(frames=5), monkeypatch)
    assert seeks >= 4
    assert taken <= 5 * 10 + 10


def test_one_pass_where_they_are_sparse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.mp4", n=300, gop=1000)
    taken, seeks = packets_decoded(path, Sampling(frames=20), monkeypatch)
    assert seeks <= 1  # back to the beginning, after the first picture
    assert taken <= 300 + 10


def test_a_demuxer_that_lands_elsewhere_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.mkv", n=300, gop=10)
    expected = numbers(read(path, Sampling(frames=4), default_frames=8).frames)
    end = av.open(str(path)).duration

    class Liar:
        """A container whose seeks all go to the last key picture."""

        def __init__(self, container: Any) -> None:
            self._container = container

        def __getattr__(self, name: str) -> Any:
            return getattr(self._container, name)

        def seek(self, *args: Any, **kwargs: Any) -> None:
            self._container.seek(end)

    monkeypatch.setattr(decode, "open_container", lambda *args: Liar(open_container(*args)))
    assert numbers(read(path, Sampling(frames=4), default_frames=8).frames) == expected


def test_plan_goes_back_to_the_key_picture_that_a_leading_picture_needs() -> None:
    # File order I0 P3 B1 B2 I6 B4 B5: pictures 4 and 5 follow I6 in the file and need P3 too.
    packets = np.array([0, 2, 3, 1, 5, 6, 4])
    timeline = Timeline(
        starts=np.arange(7) / 10,
        end_seconds=0.7,
        origin_seconds=0.0,
        packets=packets,
        ranks=np.argsort(packets),
        keys=np.array([0, 4]),
        key_pts=np.array([0, 6]),
        is_ordered=True,
        is_cut=False,
    )
    assert decode.plan(timeline, np.array([4])) == [decode.Run(0, 5, (4,))]
    assert decode.plan(timeline, np.array([6])) == [decode.Run(4, 4, (6,))]
    assert decode.plan(timeline, np.array([1, 6])) == [decode.Run(0, 2, (1,)), decode.Run(4, 4, (6,))]
