"""The held-out questions of the demo world, families asked equally often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wq_cli.config import Limits
from wq_cli.errors import UsageError
from wq_cli.suites.item import Item, Pictures

if TYPE_CHECKING:
    from wq_cli.scenes.world import World

DEFAULT_QUESTIONS = 200
# Worlds are made before the first question is asked, about a thousand questions a second.
MOST_QUESTIONS = 100_000


@dataclass(frozen=True)
class Rendered:
    """A world of `wq scenes`, drawn when it is looked at, at the size of its own small model."""

    world: World

    def read(self, frames: int, max_side: int | None, limits: Limits) -> Pictures:
        from wq_cli.scenes.suite import rendered

        clip = rendered(self.world, frames)
        return Pictures(clip.frames.permute(0, 2, 3, 1).contiguous().numpy(), clip.pts_seconds)


def items(questions: int, seed: int) -> Iterator[Item]:
    """Questions of `wq_cli.scenes.suite`.

    Raises:
        UsageError: No such seed, or more questions than anyone waits for.
    """
    if questions > MOST_QUESTIONS:
        raise UsageError(f"`--questions {questions}` is above {MOST_QUESTIONS}")
    from wq_cli.scenes.suite import specifications

    for number, (world, asked) in enumerate(specifications(questions, seed)):
        footage = Rendered(world)
        for place, q in enumerate(asked):
            yield Item(
                id=f"{number}/{place}",
                clip=str(number),
                family=q.family,
                question=q.text,
                options=tuple(q.options),
                answer=q.answer,
                footage=footage,
                is_open=True,
            )
