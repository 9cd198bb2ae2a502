"""Worlds are decided by their seed, fit their frame and move as their actions say."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wq_cli.scenes.batches import Shape, training_clips, training_seed
from wq_cli.scenes.questions import FAMILIES
from wq_cli.scenes.things import BACKGROUNDS, COLOURS, SPRITES, Action
from wq_cli.scenes.world import (
    CLIP_SEEDS,
    HELD_OUT_SEEDS,
    LAYERS,
    LENGTH_SECONDS,
    MIN_FRAMES_PER_SCENE,
    TRAINING_SEEDS,
    Actor,
    Scene,
    World,
    frame_times,
    generate,
    sample,
)

SEEDS = st.integers(0, 2**50 - 1)
FRAMES = st.sampled_from((8, 16, 24, 32, 64, 100))
STILL = ((0.0, 0.5, 0.5), (1.0, 0.5, 0.5))


def alone(action: Action, path: tuple[tuple[float, float, float], ...] = STILL, **settings: object) -> World:
    """One square in one scene of 10 seconds."""
    actor = Actor("red square", SPRITES.index("square"), "red", action, (path,), 0.4, **settings)  # type: ignore[arg-type]
    return World(0, 10.0, (Scene(0.0, 10.0, "grey", (0.5, 0.5), (actor,)),))


def test_seed_ranges_do_not_touch() -> None:
    ranges = sorted((TRAINING_SEEDS, HELD_OUT_SEEDS, CLIP_SEEDS), key=lambda seeds: seeds.start)
    assert all(low.stop <= high.start for low, high in pairwise(ranges))


def test_training_draws_training_seeds_only() -> None:
    for step in range(20):
        assert training_seed(0, step, 3) in TRAINING_SEEDS
        for world, _ in training_clips(0, step, Shape(4, 16, 245, 2), 1.0, dict.fromkeys(FAMILIES, 1.0)):
            assert world.seed in TRAINING_SEEDS


def test_a_seed_decides_everything_in_every_process() -> None:
    code = "from wq_cli.scenes.world import *\nfrom wq_cli.scenes.questions import *\nimport hashlib\n"
    code += "text = ''.join(repr((w, questions(w, s, 12))) for s in range(40) for w in [generate(s)])\n"
    code += "print(hashlib.sha256(text.encode()).hexdigest())"
    digests = set()
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        command = [sys.executable, "-c", code]
        root = Path(__file__).parents[2]
        digests.add(subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True).stdout)
    assert len(digests) == 1
    assert generate(1) != generate(2)


@settings(max_examples=150, deadline=None)
@given(SEEDS, FRAMES)
def test_scenes_cover_the_clip_and_last_long_enough(seed: int, frames: int) -> None:
    world = generate(seed, frames=frames)
    assert LENGTH_SECONDS[0] <= world.seconds <= LENGTH_SECONDS[1]
    assert world.scenes[0].start_seconds == 0
    assert world.scenes[-1].end_seconds == world.seconds
    for before, after in pairwise(world.scenes):
        assert before.end_seconds == after.start_seconds == int(after.start_seconds)
        assert before.background != after.background
    for scene in world.scenes:
        watched = (scene.end_seconds - scene.start_seconds) * frames / world.seconds
        assert watched >= MIN_FRAMES_PER_SCENE - 1e-9 or len(world.scenes) == 1


@settings(max_examples=150, deadline=None)
@given(SEEDS, FRAMES)
def test_names_are_unambiguous(seed: int, frames: int) -> None:
    world = generate(seed, frames=frames)
    nouns = [actor.noun for _, actor in world.cast()]
    later = [f"{actor.colour_after} {actor.noun.split()[-1]}" for _, actor in world.cast() if actor.colour_after]
    assert len(set(nouns + later)) == len(nouns + later)
    for scene, actor in world.cast():
        assert 1 <= sum(other.copies for other in scene.actors) <= LAYERS
        assert scene.background not in (actor.colour, actor.colour_after)
        start, end = scene.visible_seconds(actor)
        assert scene.start_seconds <= start < end <= scene.end_seconds


@settings(max_examples=150, deadline=None)
@given(SEEDS, FRAMES)
def test_things_stay_inside_the_frame_and_apart(seed: int, frames: int) -> None:
    world = generate(seed, frames=frames)
    arrays = sample(world, frame_times(world.seconds, 100))
    x, y, size, _, opacity = np.moveaxis(arrays.pose, -1, 0)
    seen = opacity > 0
    reach = 0.92 * size / 2  # sprites have a margin
    for middle in (x, y):
        assert (middle - reach)[seen].min() > -0.02
        assert (middle + reach)[seen].max() < 1.02
    index = np.searchsorted([scene.start_seconds for scene in world.scenes], frame_times(world.seconds, 100), "right")
    free = np.array([scene.interaction is None for scene in world.scenes])[index - 1]
    for one in range(LAYERS):
        for other in range(one):
            both = seen[:, one] & seen[:, other] & free
            gap = np.maximum(abs(x[:, one] - x[:, other]), abs(y[:, one] - y[:, other]))
            assert (gap - reach[:, one] - reach[:, other])[both].min(initial=1) > -0.02


def test_frame_times_are_middles_of_equal_stretches() -> None:
    assert frame_times(12.0, 4).tolist() == [1.5, 4.5, 7.5, 10.5]


def test_moves_are_linear_between_keyframes() -> None:
    world = alone(Action.RIGHT, ((0.0, 0.2, 0.5), (0.5, 0.4, 0.5), (1.0, 0.8, 0.5)))
    pose = sample(world, np.array([0.0, 2.5, 5.0, 7.5])).pose
    assert pose[:, 0, 0].tolist() == pytest.approx([0.2, 0.3, 0.4, 0.6])
    assert pose[:, 0, 1].tolist() == pytest.approx([0.5] * 4)
    assert pose[:, 0, 4].tolist() == [1] * 4
    assert not pose[:, 1:, 4].any()


def test_blinks_are_equal_phases() -> None:
    opacity = sample(alone(Action.BLINK, repeats=2), np.arange(0.5, 10.0)).pose[:, 0, 4]
    assert opacity.tolist() == [1, 1, 0, 0, 1, 1, 0, 0, 1, 1]  # five phases of two seconds


def test_jumps_lift_and_land() -> None:
    y = sample(alone(Action.JUMP, repeats=1), np.array([1.0, 5.0, 9.0])).pose[:, 0, 1]
    assert y.tolist() == pytest.approx([0.5, 0.5 - 0.55 * 0.4, 0.5])


def test_size_colour_and_angle_change_as_told() -> None:
    times = np.array([0.0, 4.0, 6.0])
    assert sample(alone(Action.GROW), times).pose[:, 0, 2].tolist() == pytest.approx([0.2, 0.28, 0.32])
    assert sample(alone(Action.SHRINK), times).pose[:, 0, 2].tolist() == pytest.approx([0.4, 0.32, 0.28])
    turned = sample(alone(Action.SPIN, turn_degrees=360.0), np.array([2.5])).pose[0, 0, 3]
    assert turned == pytest.approx(np.pi / 2)
    tint = sample(alone(Action.RECOLOUR, colour_after="blue", onset=0.5), times).tint[:, 0]
    assert tint.tolist() == [pytest.approx(COLOURS[name]) for name in ("red", "red", "blue")]


def test_a_cut_changes_everything_at_once() -> None:
    one, two = (alone(action).scenes[0] for action in (Action.STAY, Action.GROW))
    second = Scene(10.0, 16.0, "pink", (0.1, 0.9), two.actors)
    arrays = sample(World(0, 16.0, (one, second)), np.array([9.99, 10.0]))
    assert arrays.pose[:, 0, 2].tolist() == pytest.approx([0.4, 0.2])
    top = [0.45 * np.array(BACKGROUNDS[name]) + 0.55 for name in ("grey", "pink")]
    np.testing.assert_allclose(arrays.background[:, :3], top, rtol=1e-6)
    np.testing.assert_allclose(arrays.background[1, 6:], [0.1, 0.9], rtol=1e-6)
