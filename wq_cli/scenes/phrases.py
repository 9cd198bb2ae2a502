"""A question, and the phrases and candidate answers that its families share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from wq_cli.scenes.things import COLOURS, EMOJI, NUMBERS, ORDINALS, SHAPES, article, plural
from wq_cli.scenes.world import Actor, Scene, World


@dataclass(frozen=True)
class Question:
    """One question about one clip.

    Attributes:
        family: Key of `FAMILIES`.
        text: As a person types it.
        answer: Expected answer, lower case.
        options: Two to six candidate answers, the right one included.
        relevant: (start, end) seconds in which a thing that is asked about is on the screen; empty where it never is.
        asked: The noun asked about, empty when the whole clip is meant.
    """

    family: str
    text: str
    answer: str
    options: tuple[str, ...]
    relevant: tuple[tuple[float, float], ...] = ()
    asked: str = ""


def pick_options(rng: Random, answer: str, others: Sequence[str], count: int = 4) -> tuple[str, ...]:
    """The answer and up to `count - 1` other options, shuffled."""
    pool = [other for other in dict.fromkeys(others) if other != answer]
    options = [answer, *rng.sample(pool, min(count - 1, len(pool)))]
    rng.shuffle(options)
    return tuple(options)


def definite(actor: Actor) -> str:
    """Its name with `the`."""
    return f"the {actor.name}"


def indefinite(actor: Actor) -> str:
    """Its name with `a`, `an` or a number."""
    return article(actor.noun) if actor.copies == 1 else f"{NUMBERS[actor.copies]} {actor.name}"


def auxiliary(actor: Actor) -> str:
    """`does` or `do`."""
    return "does" if actor.copies == 1 else "do"


def be(actor: Actor) -> str:
    """`is` or `are`."""
    return "is" if actor.copies == 1 else "are"


def visible(*pairs: tuple[Scene, Actor]) -> tuple[tuple[float, float], ...]:
    """(start, end) seconds in which each is on the screen."""
    return tuple(scene.visible_seconds(actor) for scene, actor in pairs)


def absent_noun(world: World, rng: Random) -> str:
    """A noun that the clip never shows, often a shape of the clip in another colour."""
    shown = {actor.noun for _, actor in world.cast()}
    shown |= {f"{a.colour_after} {a.noun.split()[-1]}" for _, a in world.cast() if a.colour_after}
    shapes = [actor.noun.split()[-1] for _, actor in world.cast() if actor.colour]
    while True:
        if shapes and rng.random() < 0.4:
            noun = f"{rng.choice(list(COLOURS))} {rng.choice(shapes)}"
        elif rng.random() < 0.3:
            noun = f"{rng.choice(list(COLOURS))} {rng.choice(SHAPES)}"
        else:
            noun = rng.choice(list(EMOJI))
        if noun not in shown:
            return noun


def other_things(world: World, rng: Random, actor: Actor) -> list[str]:
    """`the ...` phrases to stand beside the right one: those of the clip first, then absent ones."""
    inside = [definite(other) for _, other in world.cast() if other is not actor]
    rng.shuffle(inside)
    outside = [absent_noun(world, rng) for _ in range(3)]
    return (inside + [f"the {plural(noun) if actor.copies > 1 else noun}" for noun in outside])[:3]


def scene_name(rng: Random, index: int) -> str:
    """One of the ways to name a scene by its number."""
    return rng.choice((f"scene {NUMBERS[index + 1]}", f"the {ORDINALS[index]} scene", f"scene {index + 1}"))
