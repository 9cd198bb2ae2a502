"""F13: `--sample keyframes` and `--sample scene`: which frames, what each stands for, what is decoded for it."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
from small_videos import Picture, make, numbered, numbers

from wq_cli.config import Sampling
from wq_cli.errors import UsageError, VideoError
from wq_cli.video import decode, read, scene

# Pictures of each shot in the clip below: three cuts.
SHOTS = (10, 25, 7, 18)
CUTS = np.cumsum(SHOTS)[:-1]
COLOURS = ((200, 30, 30), (30, 160, 40), (40, 40, 220), (210, 200, 20))


def shot(i: int, width: int, height: int) -> Picture:
    """A coloured ground, one to a shot, with a square that moves and light that slowly changes."""
    colour = np.array(COLOURS[int(np.searchsorted(CUTS, i, side="right"))])
    picture = np.tile((colour + i // 2).astype(np.uint8), (height, width, 1))
    picture[20:36, i : i + 16] = 255
    return picture


def shot_of(seconds: float) -> int:
    return int(np.searchsorted(CUTS / 10, seconds + 1e-6, side="right"))


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuts")
    return make(folder / "a.mp4", n=sum(SHOTS), draw=shot, gop=100, options={"sc_threshold": "0"})


@pytest.mark.parametrize("asked", [4, 5, 6, 12])
def test_every_shot_gets_frames(cuts: Path, asked: int) -> None:
    clip = read(cuts, Sampling(sample="scene", frames=asked), default_frames=8)
    assert len(clip.frames) == asked
    assert {shot_of(t) for t in clip.pts_seconds} == {0, 1, 2, 3}
    assert clip.notices == ("4 shots found",)
    # No frame stands for the time of another shot.
    for (low, high), seconds in zip(clip.span_seconds, clip.pts_seconds, strict=True):
        assert shot_of(low) == shot_of(seconds) == shot_of(high - 1e-3)
    assert clip.span_seconds[0, 0] == 0 and clip.span_seconds[-1, 1] == pytest.approx(6)
    assert clip.span_seconds[1:, 0].tolist() == clip.span_seconds[:-1, 1].tolist()


def test_more_shots_than_frames(cuts: Path) -> None:
    clip = read(cuts, Sampling(sample="scene", frames=2), default_frames=8)
    assert [shot_of(t) for t in clip.pts_seconds] == [1, 3]  # the longest
    assert clip.notices == ("4 shots found, 2 frames asked for: the longest",)
    assert clip.span_seconds.tolist() == [[0, pytest.approx(4.2)], [pytest.approx(4.2), pytest.approx(6)]]


def test_scenes_of_a_range(cuts: Path) -> None:
    clip = read(cuts, Sampling(sample="scene", frames=4, start=2, end=5), default_frames=8)
    assert {shot_of(t) for t in clip.pts_seconds} == {1, 2, 3}
    assert clip.notices == ("3 shots found",)


def test_only_key_pictures_of_a_long_video_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a.mp4", n=sum(SHOTS), draw=shot, gop=2, options={"sc_threshold": "0"})
    monkeypatch.setattr(scene, "MOST_COMPARED", 40)
    clip = read(path, Sampling(sample="scene", frames=4), default_frames=8)
    assert clip.notices == ("4 shots found",)
    assert clip.span_seconds[1:, 0] == pytest.approx([1.0, 3.6, 4.2])  # of 1.0, 3.5, 4.2 at every second picture


def test_one_shot_and_still_pictures(tmp_path: Path) -> None:
    moving = make(tmp_path / "a.mp4", n=40, draw=lambda i, w, h: np.roll(numbered(5, w, h), 3 * i, axis=1))
    still = make(tmp_path / "b.mp4", n=40, draw=lambda i, w, h: np.full((h, w, 3), 40, np.uint8))
    fading = make(tmp_path / "c.mp4", n=40, draw=lambda i, w, h: np.full((h, w, 3), 6 * i, np.uint8))
    for path in (moving, still, fading):
        clip = read(path, Sampling(sample="scene", frames=4), default_frames=8)
        assert clip.notices == ("1 shot found",)
        assert clip.pts_seconds == pytest.approx([0.5, 1.5, 2.5, 3.5])


def test_few_frames_are_all_used(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=3)
    clip = read(path, Sampling(sample="scene", frames=8), default_frames=8)
    assert numbers(clip.frames) == [0, 1, 2]
    assert clip.notices == ("only 3 frames available, 8 asked for: each is used once",)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 pictures, a key picture every 6."""
    folder = tmp_path_factory.mktemp("keyed")
    return make(folder / "a.mkv", n=60, gop=6, options={"sc_threshold": "0"})


def test_key_pictures_nearest_to_the_middles(keyed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def counted(self: object, frames: list[av.VideoFrame]) -> object:
        decoded.extend(frames)
        return ranked(self, frames)

    ranked = decode.Decoder._ranked
    monkeypatch.setattr(decode.Decoder, "_ranked", counted)
    clip = read(keyed, Sampling(sample="keyframes", frames=3), default_frames=8)
    assert numbers(clip.frames) == [12, 30, 48]  # middles are 10, 30 and 50
    assert clip.span_seconds == pytest.approx(np.array([[0, 2.1], [2.1, 3.9], [3.9, 6]]))
    assert clip.notices == ()
    assert len(decoded) == 4, "these three, and the first for the size"


def test_fewer_key_pictures_than_asked(keyed: Path) -> None:
    clip = read(keyed, Sampling(sample="keyframes", frames=11), default_frames=8)
    assert numbers(clip.frames) == list(range(0, 60, 6))
    assert clip.notices == ("only 10 key pictures available, 11 asked for: each is used once",)
    part = read(keyed, Sampling(sample="keyframes", frames=2, start=1.9, end=3.1), default_frames=8)
    assert numbers(part.frames) == [24, 30]
    with pytest.raises(VideoError, match=r"no key picture between 2.5 and 2.9 s"):
        read(keyed, Sampling(sample="keyframes", start=2.5, end=2.9), default_frames=8)


def test_one_key_picture_stands_for_all(tmp_path: Path) -> None:
    path = make(tmp_path / "a.mp4", n=20, gop=100, options={"sc_threshold": "0"})
    clip = read(path, Sampling(sample="keyframes"), default_frames=8)
    assert numbers(clip.frames) == [0]
    assert clip.span_seconds.tolist() == [[0, 2]]
    assert clip.notices == ("only 1 key picture available, 8 asked for: each is used once",)


@pytest.mark.parametrize("sample", ["uniform", "scene", "keyframes"])
def test_a_rate_goes_with_fps_alone(sample: str) -> None:
    with pytest.raises(UsageError, match=f"`--sample {sample}` takes a number of frames, not a rate"):
        Sampling(sample=sample, fps=2)
    with pytest.raises(UsageError, match="`--sample fps` needs a rate"):
        Sampling(sample="fps")
    assert Sampling(sample="fps", fps=2) == Sampling(sample="fps", frames=None, fps=2)


@pytest.mark.parametrize("sample", ["scene", "keyframes"])
def test_folders_too(tmp_path: Path, sample: str) -> None:
    from PIL import Image

    for i in range(20):
        Image.fromarray(shot(3 * i, 96, 64)).save(tmp_path / f"{i}.png")
    clip = read(tmp_path, Sampling(sample=sample, frames=4), default_frames=8)
    assert len(clip.frames) == 4
    if sample == "scene":
        assert {shot_of(3 * t / 10) for t in clip.pts_seconds} == {0, 1, 2, 3}
