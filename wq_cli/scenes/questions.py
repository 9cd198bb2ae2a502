"""Draws questions about a world and words them as people do.

The families are named after MVBench's tasks (Li et al. 2024, arXiv 2311.17005).
The answer to a multiple-choice question is the text of the right option, never its letter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from wq_cli.scenes import about_things, about_time
from wq_cli.scenes.phrases import Question
from wq_cli.scenes.world import World

__all__ = ["FAMILIES", "Question", "questions"]

FAMILIES: dict[str, Callable[[World, Random], Question | None]] = {
    "OE": about_things.existence,
    "OI": about_things.interaction,
    "MC": about_things.count,
    "MD": about_things.direction,
    "AC": about_things.repeats,
    "CO": about_time.order,
    "AL": about_time.when,
    "ST": about_time.scene_change,
    "SC": about_things.state_change,
    "AA": about_things.antonym,
    "FA": about_things.action,
    "FR": about_time.story,
}


def questions(
    world: World, seed: int, count: int, weights: Mapping[str, float] | None = None, wording: bool = True
) -> list[Question]:
    """Up to `count` different questions.

    Args:
        seed: Decides families, targets and wording.
        weights: Relative frequency of each family; equal when not given.
        wording: False leaves out multiple-choice endings and polite fillers.
    """
    rng = Random(seed)
    names = list(FAMILIES)
    shares = [1.0 if weights is None else weights[name] for name in names]
    asked: dict[str, Question] = {}
    for name in rng.choices(names, shares, k=4 * count):
        if len(asked) == count:
            break
        question = FAMILIES[name](world, rng)
        if question is not None and question.text not in asked:
            asked[question.text] = question
    return [_worded(question, rng) if wording else question for question in asked.values()]


def _worded(question: Question, rng: Random) -> Question:
    """Adds fillers, and turns some questions into multiple choice."""
    text = question.text
    if rng.random() < 0.12:
        text = rng.choice(("please tell me: ", "tell me, ", "can you tell me: ", "look at the video. ")) + text
    if rng.random() < 0.3 and question.family != "FR" and " or " not in text and "(A)" not in text:
        options = list(question.options)
        rng.shuffle(options)
        listed = " ".join(f"({letter}) {option}" for letter, option in zip("ABCDEF", options, strict=False))
        text += rng.choice((" Answer with one: ", " Options: ", " Choose one: ")) + listed
        return replace(question, text=text, options=tuple(options))
    if rng.random() < 0.15:
        text = text.removesuffix("?")
    return replace(question, text=text)
