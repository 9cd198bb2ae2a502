"""Families of questions about the course of a clip: order, time, scenes, and what happens.

Each function takes a world and a source of chance and gives a question, or nothing where none fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from wq_cli.scenes.phrases import (
    Question,
    absent_noun,
    auxiliary,
    be,
    definite,
    indefinite,
    pick_options,
    scene_name,
    visible,
)
from wq_cli.scenes.things import BACKGROUNDS, EMOJI, NUMBERS, Action, article
from wq_cli.scenes.world import LENGTH_SECONDS, Scene, World

MAX_CLAUSES = 4
WHOLE_SECONDS = range(LENGTH_SECONDS[0], LENGTH_SECONDS[1] + 1)


def order(world: World, rng: Random) -> Question | None:
    """CO: what comes first, next or last."""
    if len(world.scenes) < 2:
        return None
    if rng.random() < 0.3:
        early, late = sorted(rng.sample(range(len(world.scenes)), 2))
        pair = [(world.scenes[i], rng.choice(world.scenes[i].actors)) for i in (early, late)]
        names = [definite(actor) for _, actor in rng.sample(pair, 2)]
        word, answer = rng.choice((("first", pair[0][1]), ("last", pair[1][1]), ("later", pair[1][1])))
        text = f"which comes {word}, {names[0]} or {names[1]}?"
        return Question("CO", text, definite(answer), tuple(names), visible(*pair), answer.noun)
    index = rng.choice([i for i, scene in enumerate(world.scenes) if len(scene.actors) < 3] or [0])
    scene = world.scenes[index]
    texts = [f"what is in {scene_name(rng, index)}?"]
    if index > 0:
        before = (world.scenes[index - 1], rng.choice(world.scenes[index - 1].actors))
        texts.append(
            f"what {rng.choice(('comes after', 'comes right after', 'comes next after'))} {definite(before[1])}?"
        )
    if index + 1 < len(world.scenes):
        after = (world.scenes[index + 1], rng.choice(world.scenes[index + 1].actors))
        texts.append(f"what comes {rng.choice(('before', 'right before'))} {definite(after[1])}?")
    if index in (0, len(world.scenes) - 1):
        word = "first" if index == 0 else "last"
        texts.append(rng.choice((f"what comes {word}?", f"what do you see {word}?", f"what is in the {word} scene?")))
    text = rng.choice(texts)
    answer_text = _listing(scene)
    wrong = [_listing(other) for other in world.scenes if other is not scene]
    wrong += [f"the {absent_noun(world, rng)}" for _ in range(3)]
    options = pick_options(rng, answer_text, wrong)
    if "after" in text:
        return Question("CO", text, answer_text, options, visible(before), before[1].noun)
    if "before" in text:
        return Question("CO", text, answer_text, options, visible(after), after[1].noun)
    return Question("CO", text, answer_text, options)


def _listing(scene: Scene) -> str:
    return " and ".join(definite(actor) for actor in scene.actors)


def when(world: World, rng: Random) -> Question | None:
    """AL: in which scene, part or second something appears."""
    if len(world.scenes) < 2:
        return None
    scene, actor = rng.choice(world.cast())
    index = world.scenes.index(scene)
    the, do, relevant = definite(actor), auxiliary(actor), visible((scene, actor))
    form = rng.random()
    if form < 0.45:
        answer = f"scene {NUMBERS[index + 1]}"
        text = rng.choice(
            (f"in which scene {do} {the} appear?", f"in which scene {be(actor)} {the}?", f"which scene shows {the}?")
        )
        options = pick_options(rng, answer, [f"scene {NUMBERS[i + 1]}" for i in range(len(world.scenes))])
        return Question("AL", text, answer, options, relevant, actor.noun)
    if form < 0.75:
        middle = (scene.start_seconds + scene.end_seconds) / 2 / world.seconds
        part = [name for low, high, name in _PARTS if low <= middle <= high]
        if not part:
            return None
        text = rng.choice(
            (f"when {do} {the} appear?", f"when do you see {the}?", f"when {be(actor)} {the} shown?",
             f"when can you see {the}?", f"at what time {do} {the} appear?")
        )  # fmt: skip
        return Question(
            "AL", text, part[0], pick_options(rng, part[0], [name for *_, name in _PARTS]), relevant, actor.noun
        )
    if actor.action is Action.APPEAR or world.seconds not in WHOLE_SECONDS:
        return None
    answer = f"at {scene.start_seconds:.0f} seconds"
    options = pick_options(rng, answer, [f"at {other.start_seconds:.0f} seconds" for other in world.scenes])
    text = f"the video is {world.seconds:.0f} seconds long. at which second {do} {the} appear?"
    if rng.random() < 0.7:
        listed = " ".join(f"({letter}) {option}" for letter, option in zip("ABCD", options, strict=False))
        text += f" Options: {listed}"
    return Question("AL", text, answer, options, relevant, actor.noun)


_PARTS = ((0.0, 0.34, "at the beginning"), (0.42, 0.58, "in the middle"), (0.66, 1.0, "at the end"))


def scene_change(world: World, rng: Random) -> Question | None:
    """ST: how many scenes, cuts, and their backgrounds."""
    count = len(world.scenes)
    form = rng.random()
    if form < 0.3:
        text = rng.choice(
            ("how many scenes are there?", "how many scenes does the video have?", "how many scenes do you see?")
        )
        return Question("ST", text, NUMBERS[count], pick_options(rng, NUMBERS[count], NUMBERS[1:5]))
    if form < 0.5:
        text = rng.choice(("how many times does the scene change?", "how often does the background change?",
                           "how many cuts are there?"))  # fmt: skip
        return Question("ST", text, NUMBERS[count - 1], pick_options(rng, NUMBERS[count - 1], NUMBERS[:4]))
    index = rng.randrange(count)
    scene = world.scenes[index]
    where = f"in {scene_name(rng, index)}" if count > 1 else "in the video"
    if index == 0 and rng.random() < 0.3:
        where = "at the beginning"
    elif index == count - 1 and rng.random() < 0.3:
        where = "at the end"
    text = rng.choice((f"what colour is the background {where}?", f"what color is the background {where}?"))
    relevant = ((scene.start_seconds, scene.end_seconds),) if count > 1 else ()
    return Question("ST", text, scene.background, pick_options(rng, scene.background, list(BACKGROUNDS)), relevant)


def story(world: World, rng: Random) -> Question | None:
    """FR: what happens, in sentences."""
    clauses = [_clauses(scene) for scene in world.scenes]
    if sum(map(len, clauses)) <= MAX_CLAUSES and (len(clauses) == 1 or rng.random() < 0.7):
        text = rng.choice(("what happens?", "what happens in the video?", "what is happening?", "describe the video.",
                           "what is going on in this clip?", "what can you see?", "tell me what you see",
                           "describe what happens.", "what happens in this clip?"))  # fmt: skip
        return Question("FR", text, _tell(clauses), _retold(clauses, rng))
    index = rng.randrange(len(world.scenes))
    scene = world.scenes[index]
    last = len(world.scenes) - 1
    texts = [f"what happens in {scene_name(rng, index)}?"] * 2
    if index == 0 and last:
        texts += ["what happens first?", "what happens at the beginning?", "what happens at the start?"]
    elif index == last and last:
        texts += ["what happens last?", "what happens at the end?", "what happens in the last scene?"]
    if index and len(world.scenes[index - 1].actors) == 1:
        texts += [f"what happens after {definite(before)} {before.verb}?" for before in world.scenes[index - 1].actors]
    relevant = ((scene.start_seconds, scene.end_seconds),) if last else ()
    told = clauses[index : index + 1]
    return Question("FR", rng.choice(texts), _tell(told), _retold(told, rng), relevant)


def _clauses(scene: Scene) -> list[str]:
    if scene.interaction:
        first, second = scene.actors
        return [f"{indefinite(first)} {scene.interaction} {indefinite(second)}"]
    return [f"{indefinite(actor)} {actor.verb}" for actor in scene.actors]


def _tell(clauses: Sequence[Sequence[str]]) -> str:
    """Full sentences, one per scene."""
    starts = ("",) if len(clauses) == 1 else ("first ", *["then "] * (len(clauses) - 1))
    return " ".join(f"{start}{' and '.join(part)}." for start, part in zip(starts, clauses, strict=True))


def _retold(clauses: Sequence[Sequence[str]], rng: Random) -> tuple[str, ...]:
    """The right story and up to three that differ in one noun or, with several scenes, in their order."""
    right = _tell(clauses)
    wrong = [_tell(list(reversed(clauses)))]
    for _ in range(3):
        changed = [list(part) for part in clauses]
        part = rng.choice(changed)
        index = rng.randrange(len(part))
        verb = next((a for a in Action for v in a.value if part[index].endswith(f" {v}")), None)
        if verb is None:
            part[index] = f"{article(rng.choice(list(EMOJI)))} {' '.join(part[index].split()[-3:])}"
        else:
            number = 0 if part[index].endswith(f" {verb.singular}") else 1
            other = rng.choice([action for action in Action if action is not verb])
            part[index] = part[index].removesuffix(verb.value[number]) + other.value[number]
        wrong.append(_tell(changed))
    return pick_options(rng, right, wrong)
