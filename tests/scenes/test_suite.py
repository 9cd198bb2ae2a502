"""The held-out suite: seeds of its own, families asked equally often."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import pytest
import torch

from wq_cli.errors import UsageError
from wq_cli.scenes.questions import FAMILIES
from wq_cli.scenes.suite import QUESTIONS_PER_CLIP, SEEDS, rendered, specifications
from wq_cli.scenes.world import HELD_OUT_SEEDS


@pytest.mark.parametrize("count", [1, 7, 120, 600])
def test_counts_are_exact_and_families_equal(count: int) -> None:
    asked: Counter[str] = Counter()
    for world, questions in specifications(count):
        assert world.seed in HELD_OUT_SEEDS
        assert 1 <= len(questions) <= QUESTIONS_PER_CLIP
        assert len({question.family for question in questions}) == len(questions)
        asked.update(question.family for question in questions)
    assert asked.total() == count
    assert max(asked.values()) <= -(-count // len(FAMILIES))


@pytest.mark.parametrize("seed", [-1, SEEDS])
def test_seeds_without_clips_of_their_own(seed: int) -> None:
    next(specifications(1, SEEDS - 1))
    with pytest.raises(UsageError, match="--seed"):
        next(specifications(1, seed))


def test_a_seed_decides_the_suite() -> None:
    first, again, other = (list(specifications(60, seed)) for seed in (0, 0, 1))
    assert first == again
    assert not {world.seed for world, _ in first} & {world.seed for world, _ in other}


def test_clips_are_rendered_at_the_middles() -> None:
    for world, questions in islice(specifications(12), 3):
        assert questions
        clip = rendered(world, frames=20)
        assert clip.frames.shape == (20, 3, 64, 64)
        assert clip.frames.dtype == torch.uint8
        step = world.seconds / 20
        np.testing.assert_allclose(clip.pts_seconds, [(i + 0.5) * step for i in range(20)])
        cuts = (np.asarray(clip.pts_seconds)[:, None] >= [scene.start_seconds for scene in world.scenes]).sum(1)
        mean = clip.frames.float().mean((2, 3))
        for before, after in zip(range(19), range(1, 20), strict=True):
            if cuts[before] != cuts[after]:
                assert (mean[before] - mean[after]).abs().max() > 2  # another background
