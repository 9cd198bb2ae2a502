"""Held-out clips and questions: seeds that training never draws, families asked equally often."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wq_cli.errors import UsageError
from wq_cli.scenes.questions import FAMILIES, Question, questions
from wq_cli.scenes.world import HELD_OUT_SEEDS, World, frame_times, generate, sample

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

MADE_FOR_FRAMES = 16
QUESTIONS_PER_CLIP = 6
# Far more than any suite asks about, so that no two seeds share a clip.
CLIPS_PER_SEED = 2**32
SEEDS = len(HELD_OUT_SEEDS) // CLIPS_PER_SEED


@dataclass(frozen=True)
class Clip:
    """A rendered held-out clip.

    Attributes:
        frames: [F, 3, size, size] uint8.
        pts_seconds: Time of each frame, [F] float64.
    """

    frames: Tensor
    pts_seconds: NDArray[np.float64]


def specifications(count: int, seed: int = 0) -> Iterator[tuple[World, list[Question]]]:
    """Worlds with up to six questions each, `count` questions in all, equally many of every family (up to rounding).

    The same questions fit any number of frames from `MADE_FOR_FRAMES` on.

    Raises:
        UsageError: No such seed.
    """
    asked: Counter[str] = Counter(dict.fromkeys(FAMILIES, 0))
    quota = math.ceil(count / len(FAMILIES))
    if not 0 <= seed < SEEDS:
        raise UsageError(f"`--seed {seed}` is not in 0 to {SEEDS - 1}")
    index = seed * CLIPS_PER_SEED
    while count > 0:
        world = generate(HELD_OUT_SEEDS[index], frames=MADE_FOR_FRAMES)
        offered = questions(world, HELD_OUT_SEEDS[index], 40)
        chosen: list[Question] = []
        for family, times in reversed(asked.most_common()):
            if times == quota:
                continue
            candidate = next((question for question in offered if question.family == family), None)
            if candidate is not None and len(chosen) < min(QUESTIONS_PER_CLIP, count):
                chosen.append(candidate)
        asked.update(question.family for question in chosen)
        count -= len(chosen)
        index += 1
        if chosen:
            yield world, chosen


def rendered(world: World, frames: int, size: int = 64) -> Clip:
    """A held-out world drawn as a clip.

    Args:
        frames: At least `MADE_FOR_FRAMES`, or the questions may ask about what does not show.
        size: Side of a frame in pixels.
    """
    from wq_cli.scenes.render import render, to_tensors

    times = frame_times(world.seconds, frames)
    pixels = render(*to_tensors(sample(world, times)), size)
    return Clip((pixels * 255).round().byte(), times)
