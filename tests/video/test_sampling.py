"""B1, B5: which frames are chosen, what each stands for, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_videos import make, numbers

from wq_cli.config import Sampling
from wq_cli.errors import UsageError
from wq_cli.video import read
from wq_cli.video.sample import choose


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("ten") / "a.mp4", n=10)


@pytest.mark.parametrize("asked", [11, 20, 32, 100])
def test_b1_fewer_frames_than_asked(ten: Path, asked: int) -> None:
    clip = read(ten, Sampling(frames=asked), default_frames=8)
    assert numbers(clip.frames) == list(range(10))
    assert clip.requested == asked
    assert clip.notices == (f"only 10 frames available, {asked} asked for: each is used once",)


def test_b1_by_default_too(ten: Path) -> None:
    clip = read(ten, Sampling(), default_frames=16)
    assert len(clip.frames) == 10 and clip.requested == 16 and len(clip.notices) == 1


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [5]), (2, [2, 7]), (3, [1, 5, 8]), (5, [1, 3, 5, 7, 9]), (10, list(range(10)))]
)
def test_middles_of_equal_stretches(ten: Path, count: int, expected: list[int]) -> None:
    clip = read(ten, Sampling(frames=count), default_frames=8)
    assert numbers(clip.frames) == expected
    edges = np.linspace(0, 1, count + 1)
    assert clip.span_seconds == pytest.approx(np.stack((edges[:-1], edges[1:]), axis=1))
    assert clip.notices == ()


def test_rate(ten: Path) -> None:
    clip = read(ten, Sampling(fps=4), default_frames=8)
    assert numbers(clip.frames) == [1, 3, 6, 8]
    assert clip.requested == 4


def test_rate_with_a_stretch_left_over(ten: Path) -> None:
    clip = read(ten, Sampling(fps=3, end=0.7), default_frames=8)
    assert numbers(clip.frames) == [1, 5, 6]
    assert clip.span_seconds == pytest.approx(np.array([[0, 1 / 3], [1 / 3, 2 / 3], [2 / 3, 0.7]]))


def test_b5_rate_above_the_source(ten: Path) -> None:
    clip = read(ten, Sampling(fps=60), default_frames=8)
    assert numbers(clip.frames) == list(range(10))
    assert clip.notices == ("`--fps 60` is above the rate of the video (10): all 10 frames are used once",)


def test_b5_rate_equal_to_the_source(ten: Path) -> None:
    clip = read(ten, Sampling(fps=10), default_frames=8)
    assert numbers(clip.frames) == list(range(10)) and clip.notices == ()


def test_b5_rate_and_count_together() -> None:
    with pytest.raises(UsageError, match="cannot be used together"):
        Sampling(fps=1, frames=8)


def test_range(ten: Path) -> None:
    clip = read(ten, Sampling(frames=2, start=0.2, end=0.6), default_frames=8)
    assert numbers(clip.frames) == [3, 5]
    assert clip.span_seconds == pytest.approx(np.array([[0.2, 0.4], [0.4, 0.6]]))


def test_range_after_the_end(ten: Path) -> None:
    with pytest.raises(UsageError, match=r"`--start 7` is not before the end of the video \(1.00 s\)"):
        read(ten, Sampling(start=7), default_frames=8)
    assert read(ten, Sampling(end=7), default_frames=4).notices == ("`--end 7` is after the end of the video (1.00 s)",)


@st.composite
def timelines(draw: st.DrawFn) -> tuple[np.ndarray, float]:
    gaps = draw(st.lists(st.integers(0, 2000), min_size=0, max_size=60))
    starts = np.cumsum([0, *gaps]) / 1000
    return starts, float(starts[-1] + draw(st.integers(1, 2000)) / 1000)


@given(
    timeline=timelines(),
    frames=st.one_of(st.none(), st.integers(1, 200)),
    fps=st.floats(0.01, 2000),
    cut=st.tuples(st.floats(0, 0.99), st.floats(0.01, 1)),
)
def test_any_choice_is_sound(
    timeline: tuple[np.ndarray, float], frames: int | None, fps: float, cut: tuple[float, float]
) -> None:
    starts, end = timeline
    low, high = cut[0] * end, (cut[0] + cut[1] * (1 - cut[0])) * end
    if high - low < 1e-3:
        return
    sampling = Sampling(frames=frames, fps=None if frames else fps, start=low, end=high)
    choice = choose(starts, end, sampling, 8)
    assert 1 <= len(choice.ranks) <= choice.requested
    assert (np.diff(choice.ranks) > 0).all()
    assert (np.diff(choice.edges) >= 0).all()
    assert choice.edges[0] == low and choice.edges[-1] == pytest.approx(min(high, end))
    # Every chosen frame is on display at some time of the range.
    ends = np.append(starts[1:], end)
    assert (starts[choice.ranks] < high).all()
    assert (ends[choice.ranks] >= low - 1e-6).all()
    # Fewer than asked for, for whatever reason, is always said.
    assert (len(choice.ranks) < choice.requested) == bool(choice.notices)


@given(timeline=timelines(), count=st.integers(1, 30))
def test_the_frame_on_display_in_the_middle(timeline: tuple[np.ndarray, float], count: int) -> None:
    starts, end = timeline
    choice = choose(starts, end, Sampling(frames=count), 8)
    if count >= len(starts):
        assert choice.ranks.tolist() == list(range(len(starts)))
        return
    shown = []
    for i in range(count):
        middle = end * (2 * i + 1) / (2 * count) + 1e-9
        rank = max(r for r in range(len(starts)) if starts[r] <= middle)
        if rank not in shown:
            shown.append(rank)
    near = [np.abs(starts - end * (2 * i + 1) / (2 * count)).min() for i in range(count)]
    if min(near) > 1e-6:  # on the very edge either neighbour will do
        assert choice.ranks.tolist() == shown
