"""Clips for people: what is in the file, what is refused, and the example that ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wq_cli.config import Sampling
from wq_cli.errors import UsageError, VideoError
from wq_cli.scenes import ASSETS, COMMENT_PREFIX
from wq_cli.scenes.make import make, one_per_family
from wq_cli.scenes.questions import FAMILIES
from wq_cli.scenes.suite import MADE_FOR_FRAMES
from wq_cli.scenes.world import CLIP_SEEDS, generate
from wq_cli.video import probe, read

SMALL: dict[str, Any] = {"seconds": 4.0, "fps": 4.0, "size": 64}


@pytest.mark.parametrize("ending", ["mp4", "mkv", "mov"])
def test_the_container_tells_what_it_shows(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"clip.{ending}"
    make(path, seed=12, **SMALL)
    info = probe(path)
    assert info.comment is not None
    assert info.comment.startswith(COMMENT_PREFIX) and info.comment.endswith("seed=12")
    assert (info.width, info.height, info.frame_count) == (64, 64, 16)
    assert info.duration_seconds == pytest.approx(4.0, abs=2e-3)


def test_a_seed_is_a_clip(tmp_path: Path) -> None:
    asked = [make(tmp_path / f"{name}.mp4", seed=seed, **SMALL) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert asked[0] == asked[1] != asked[2]
    a, b, c = (read(tmp_path / f"{name}.mp4", Sampling(), default_frames=16).frames for name in "abc")
    np.testing.assert_array_equal(a, b)
    assert np.abs(a.astype(int) - c).mean() > 5


def test_questions_are_plain_and_of_different_families() -> None:
    for seed in range(40):
        asked = one_per_family(generate(CLIP_SEEDS[seed], frames=MADE_FOR_FRAMES, seconds=12.0))
        families = [question.family for question in asked]
        assert families == [family for family in FAMILIES if family in families]
        assert len(families) >= 5
        assert not any("(A)" in question.text for question in asked)


def test_long_clips_are_not_asked_for_seconds() -> None:
    """The model has only seen lengths of whole seconds up to 20."""
    for seconds in (90.0, 12.5):
        for seed in range(40):
            asked = one_per_family(generate(CLIP_SEEDS[seed], frames=MADE_FOR_FRAMES, seconds=seconds))
            assert not any("seconds long" in question.text for question in asked)


@pytest.mark.parametrize(
    "changed, named",
    [
        ({"seed": -1}, "`--seed -1`"),
        ({"seconds": 3.0}, "`--seconds 3`"),
        ({"seconds": float("nan")}, "`--seconds nan`"),
        ({"fps": 0.5}, "`--fps 0.5`"),
        ({"fps": 1.0}, "gives 4 frames in 4 seconds"),
        ({"size": 65}, "`--size 65`"),
        ({"size": 32}, "`--size 32`"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, changed: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(tmp_path / "clip.mp4", **{"seed": 0, **SMALL, **changed})
    assert named in caught.value.message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["clip.txt", "clip", "clip.webm", "missing/clip.mp4"])
def test_nothing_is_left_of_a_clip_that_cannot_be_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(VideoError) as caught:
        make(tmp_path / name, seed=0, **SMALL)
    assert str(tmp_path / name) in caught.value.message
    assert not list(tmp_path.iterdir())


def test_the_example_is_what_its_seed_makes() -> None:
    told = json.loads((ASSETS / "example.json").read_text())
    info = probe(ASSETS / "example.mp4")
    assert (info.comment or "").startswith(COMMENT_PREFIX) and (info.comment or "").endswith(f"seed={told['seed']}")
    assert 10 <= info.duration_seconds <= 12
    assert (ASSETS / "example.mp4").stat().st_size <= 400_000
    world = generate(CLIP_SEEDS[told["seed"]], frames=MADE_FOR_FRAMES, seconds=info.duration_seconds)
    assert len(world.scenes) == 3
    asked = [(question.family, question.text, question.answer) for question in one_per_family(world)]
    assert asked == [(entry["family"], entry["text"], entry["answer"]) for entry in told["questions"]]
