"""One function per family of questions: a world and a source of chance in, a question or nothing that fits out.

The families are named after MVBench's tasks (Li et al. 2024, arXiv 2311.17005).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from wq_cli.scenes.phrases import (
    absent_noun,
    auxiliary,
    definite,
    indefinite,
    other_things,
    pick_options,
    scene_name,
    visible,
)
from wq_cli.scenes.things import (
    BACKGROUNDS,
    COLOURS,
    EMOJI,
    INTERACTIONS,
    MOVES,
    NUMBERS,
    OPPOSITES,
    Action,
    article,
    plural,
)
from wq_cli.scenes.world import LENGTH_SECONDS, Actor, Scene, World

MAX_CLAUSES = 4
WHOLE_SECONDS = range(LENGTH_SECONDS[0], LENGTH_SECONDS[1] + 1)


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


def _existence(world: World, rng: Random) -> Question | None:
    scene, actor = rng.choice(world.cast())
    place, relevant, yes = "", visible((scene, actor)), rng.random() < 0.5
    noun = actor.noun
    if yes and rng.random() < 0.3 and len(world.scenes) > 1:
        place = f" in {scene_name(rng, world.scenes.index(scene))}"
    elif not yes and rng.random() < 0.3 and len(world.scenes) > 1:
        wrong = rng.choice([i for i, other in enumerate(world.scenes) if other is not scene])
        place = f" in {scene_name(rng, wrong)}"
    elif not yes:
        noun, relevant = absent_noun(world, rng), ()
    thing = article(noun)
    where = place or rng.choice(("", " in the video", " in the clip", " in this video"))
    text = rng.choice(
        (f"is there {thing}{where}?", f"does {thing} appear{where}?", f"do you see {thing}{where}?",
         f"can you see {thing}{where}?", f"is {thing} shown{where}?")
    )  # fmt: skip
    return Question("OE", text, "yes" if yes else "no", ("yes", "no"), relevant, noun)


def _interaction(world: World, rng: Random) -> Question | None:
    scenes = [scene for scene in world.scenes if scene.interaction]
    if not scenes:
        return None
    scene = rng.choice(scenes)
    first, second = scene.actors
    verb = scene.interaction or ""
    relevant = visible((scene, first))
    form = rng.random()
    if form < 0.6:
        text = rng.choice(
            (f"what does the {first.noun} do to the {second.noun}?",
             f"what happens between the {first.noun} and the {second.noun}?",
             f"how does the {first.noun} act towards the {second.noun}?")
        )  # fmt: skip
        answer = f"{verb} it"
        return Question(
            "OI", text, answer, pick_options(rng, answer, [f"{v} it" for v in INTERACTIONS]), relevant, first.noun
        )
    if form < 0.8:
        text, actor = f"what {verb} the {second.noun}?", first
    else:
        text, actor = f"what does the {first.noun} {_bare(verb)}?", second
    options = pick_options(rng, definite(actor), other_things(world, rng, actor))
    return Question("OI", text, definite(actor), options, relevant, (second if actor is first else first).noun)


def _bare(verb: str) -> str:
    return {"passes": "pass", "pushes": "push"}.get(verb, verb[:-1])


def _count(world: World, rng: Random) -> Question | None:
    if rng.random() < 0.35:
        index = rng.randrange(len(world.scenes))
        scene = world.scenes[index]
        kinds = rng.random() < 0.3
        number = NUMBERS[len(scene.actors) if kinds else sum(actor.copies for actor in scene.actors)]
        place = f" in {scene_name(rng, index)}" if len(world.scenes) > 1 else ""
        text = f"how many {'kinds of things' if kinds else 'things'} are there{place}?"
        relevant = ((scene.start_seconds, scene.end_seconds),) if place else ()
        return Question("MC", text, number, pick_options(rng, number, NUMBERS[1:5]), relevant)
    several = [pair for pair in world.cast() if pair[1].copies > 1]
    single = [pair for pair in world.cast() if pair[1].copies == 1]
    pool = several if several and (not single or rng.random() < 0.8) else single if rng.random() < 0.35 else []
    if not pool:
        return None
    scene, actor = rng.choice(pool)
    many = plural(actor.noun)
    text = rng.choice((f"how many {many} are there?", f"how many {many} do you see?", f"count the {many}.",
                       f"how many {many} are in the video?"))  # fmt: skip
    number = NUMBERS[actor.copies]
    return Question("MC", text, number, pick_options(rng, number, NUMBERS[1:5]), visible((scene, actor)), actor.noun)


def _direction(world: World, rng: Random) -> Question | None:
    moving = [pair for pair in world.soloists() if pair[1].action in MOVES]
    if not moving:
        return None
    scene, actor = rng.choice(moving)
    answer = MOVES[actor.action]
    the, do = definite(actor), auxiliary(actor)
    text = rng.choice(
        (f"in which direction {do} {the} move?", f"which way {do} {the} go?", f"where {do} {the} move?",
         f"what direction {do} {the} move in?", f"which direction {do} {the} go?")
    )  # fmt: skip
    return Question(
        "MD", text, answer, pick_options(rng, answer, list(MOVES.values())), visible((scene, actor)), actor.noun
    )


def _repeats(world: World, rng: Random) -> Question | None:
    acting = [pair for pair in world.soloists() if pair[1].action in (Action.JUMP, Action.BLINK)]
    if not acting:
        return None
    scene, actor = max(rng.sample(acting, len(acting)), key=lambda pair: pair[1].repeats * rng.random())
    if actor.repeats == 1 and rng.random() < 0.75:
        return None
    action, number = actor.action, NUMBERS[actor.repeats]
    if rng.random() < 0.2:
        action, number = OPPOSITES[action], NUMBERS[0]
    verb, the, do = action.plural, definite(actor), auxiliary(actor)
    text = rng.choice((f"how many times {do} {the} {verb}?", f"how often {do} {the} {verb}?"))
    return Question("AC", text, number, pick_options(rng, number, NUMBERS[:4]), visible((scene, actor)), actor.noun)


def _order(world: World, rng: Random) -> Question | None:
    if len(world.scenes) < 2:
        return None
    alone = [i for i, scene in enumerate(world.scenes) if len(scene.actors) == 1]
    if rng.random() < 0.35 or not alone:
        early, late = sorted(rng.sample(range(len(world.scenes)), 2))
        pair = [(world.scenes[i], rng.choice(world.scenes[i].actors)) for i in (early, late)]
        names = [definite(actor) for _, actor in rng.sample(pair, 2)]
        word, answer = rng.choice((("first", pair[0][1]), ("last", pair[1][1]), ("later", pair[1][1])))
        text = f"which comes {word}, {names[0]} or {names[1]}?"
        return Question("CO", text, definite(answer), tuple(names), visible(*pair), answer.noun)
    index = rng.choice(alone)
    scene, actor = world.scenes[index], world.scenes[index].actors[0]
    forms: list[tuple[str, tuple[Scene, Actor]]] = [(f"what is in {scene_name(rng, index)}?", (scene, actor))]
    if index > 0:
        before = (world.scenes[index - 1], rng.choice(world.scenes[index - 1].actors))
        forms.append((f"what comes {rng.choice(('after', 'right after'))} {definite(before[1])}?", before))
    if index + 1 < len(world.scenes):
        after = (world.scenes[index + 1], rng.choice(world.scenes[index + 1].actors))
        forms.append((f"what comes {rng.choice(('before', 'right before'))} {definite(after[1])}?", after))
    if index in (0, len(world.scenes) - 1):
        word = "first" if index == 0 else "last"
        forms.append((rng.choice((f"what comes {word}?", f"what do you see {word}?")), (scene, actor)))
    text, subject = rng.choice(forms)
    options = pick_options(rng, definite(actor), other_things(world, rng, actor))
    known = subject[1] is not actor
    return Question(
        "CO", text, definite(actor), options, visible(subject) if known else (), subject[1].noun if known else ""
    )


def _when(world: World, rng: Random) -> Question | None:
    if len(world.scenes) < 2:
        return None
    scene, actor = rng.choice(world.cast())
    index = world.scenes.index(scene)
    the, do, relevant = definite(actor), auxiliary(actor), visible((scene, actor))
    form = rng.random()
    if form < 0.45:
        answer = f"scene {NUMBERS[index + 1]}"
        be = "is" if actor.copies == 1 else "are"
        text = rng.choice(
            (f"in which scene {do} {the} appear?", f"in which scene {be} {the}?", f"which scene shows {the}?")
        )
        options = pick_options(rng, answer, [f"scene {NUMBERS[i + 1]}" for i in range(len(world.scenes))])
        return Question("AL", text, answer, options, relevant, actor.noun)
    if form < 0.75:
        middle = (scene.start_seconds + scene.end_seconds) / 2 / world.seconds
        part = [name for low, high, name in _PARTS if low <= middle <= high]
        if not part:
            return None
        text = rng.choice(
            (
                f"when {do} {the} appear?",
                f"when do you see {the}?",
                f"when {'is' if do == 'does' else 'are'} {the} shown?",
            )
        )
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


def _scene_change(world: World, rng: Random) -> Question | None:
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


_CHANGES = {
    Action.GROW: "size", Action.SHRINK: "size", Action.RECOLOUR: "colour", Action.STAY: "nothing",
    Action.LEFT: "position", Action.RIGHT: "position", Action.UP: "position", Action.DOWN: "position",
}  # fmt: skip


def _state_change(world: World, rng: Random) -> Question | None:
    form = rng.random()
    if form < 0.35:
        kinds: dict[str, list[tuple[Scene, Actor]]] = {}
        for scene, actor in world.soloists():
            if actor.action in _CHANGES:
                kinds.setdefault(_CHANGES[actor.action], []).append((scene, actor))
        if not kinds:
            return None
        answer = rng.choice(sorted(kinds))
        subject = rng.choice(kinds[answer])
        text = rng.choice(
            (f"what changes about {definite(subject[1])}?", f"what about {definite(subject[1])} changes?")
        )
        options = pick_options(rng, answer, sorted(set(_CHANGES.values())))
        return Question("SC", text, answer, options, visible(subject), subject[1].noun)
    if form < 0.7:
        shapes = [pair for pair in world.cast() if pair[1].colour]
        lone = [p for p in shapes if sum(q[1].sprite == p[1].sprite for q in shapes) == 1]
        if not lone:
            return None
        subject = max(rng.sample(lone, len(lone)), key=lambda pair: pair[1].colour_after is not None)
        actor = subject[1]
        noun = actor.name.split()[-1]
        end = actor.colour_after is not None and rng.random() < 0.5
        answer = (actor.colour_after if end else actor.colour) or ""
        be = "is" if actor.copies == 1 else "are"
        moments = (" at the end", " in the end") if end else (" at first", " at the start")
        when = rng.choice(moments) if actor.colour_after else ""
        text = f"what {rng.choice(('colour', 'color'))} {be} the {noun}{when}?"
        return Question(
            "SC", text, answer, pick_options(rng, answer, list(COLOURS)), visible(subject), actor.noun.split()[-1]
        )
    action = rng.choice((Action.GROW, Action.SHRINK, Action.RECOLOUR, Action.DISAPPEAR, Action.SPIN))
    doing = [pair for pair in world.soloists() if pair[1].action is action]
    if len(doing) != 1:
        return None
    actor = doing[0][1]
    verb = {Action.GROW: ("grows", "gets bigger"), Action.SHRINK: ("shrinks", "gets smaller")}.get(
        action, (action.singular,)
    )
    text = f"{rng.choice(('which thing', 'what'))} {rng.choice(verb)}?"
    return Question("SC", text, definite(actor), pick_options(rng, definite(actor), other_things(world, rng, actor)))


def _antonym(world: World, rng: Random) -> Question | None:
    pairs = [pair for pair in world.soloists() if pair[1].action in OPPOSITES]
    if not pairs:
        return None
    scene, actor = rng.choice(pairs)
    actions = rng.sample([actor.action, OPPOSITES[actor.action]], 2)
    text = f"{auxiliary(actor)} {definite(actor)} {actions[0].plural} or {actions[1].plural}?"
    options = tuple(action.singular if actor.copies == 1 else action.plural for action in actions)
    return Question("AA", text, actor.verb, options, visible((scene, actor)), actor.noun)


def _fine_action(world: World, rng: Random) -> Question | None:
    pairs = world.soloists()
    if not pairs:
        return None
    scene, actor = rng.choice(pairs)
    the, do = definite(actor), auxiliary(actor)
    text = rng.choice(
        (f"what {do} {the} do?", f"what {'is' if do == 'does' else 'are'} {the} doing?", f"what happens to {the}?")
    )
    others = [action.singular if actor.copies == 1 else action.plural for action in Action]
    return Question("FA", text, actor.verb, pick_options(rng, actor.verb, others), visible((scene, actor)), actor.noun)


def _story(world: World, rng: Random) -> Question | None:
    clauses = [_clauses(scene) for scene in world.scenes]
    if sum(map(len, clauses)) <= MAX_CLAUSES and (len(clauses) == 1 or rng.random() < 0.7):
        text = rng.choice(("what happens?", "what happens in the video?", "what is happening?", "describe the video.",
                           "what is going on in this clip?", "what can you see?"))  # fmt: skip
        return Question("FR", text, _tell(clauses), _retold(clauses, rng))
    index = rng.randrange(len(world.scenes))
    scene = world.scenes[index]
    text = f"what happens in {scene_name(rng, index)}?"
    relevant = ((scene.start_seconds, scene.end_seconds),) if len(world.scenes) > 1 else ()
    return Question("FR", text, _tell(clauses[index : index + 1]), _retold(clauses[index : index + 1], rng), relevant)


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


FAMILIES: dict[str, Callable[[World, Random], Question | None]] = {
    "OE": _existence,
    "OI": _interaction,
    "MC": _count,
    "MD": _direction,
    "AC": _repeats,
    "CO": _order,
    "AL": _when,
    "ST": _scene_change,
    "SC": _state_change,
    "AA": _antonym,
    "FA": _fine_action,
    "FR": _story,
}
