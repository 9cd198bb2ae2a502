"""Families of questions about things: what there is, how many, what they do and what becomes of them.

Each function takes a world and a source of chance and gives a question, or nothing where none fits.
"""

from __future__ import annotations

from random import Random

from wq_cli.scenes.phrases import (
    Question,
    absent_noun,
    auxiliary,
    be,
    definite,
    other_things,
    pick_options,
    scene_name,
    visible,
)
from wq_cli.scenes.things import COLOURS, INTERACTIONS, MOVES, NUMBERS, OPPOSITES, Action, article, plural
from wq_cli.scenes.world import Actor, Scene, World


def existence(world: World, rng: Random) -> Question | None:
    """OE: whether something is in the clip, or what something does that is not."""
    if rng.random() < 0.12:
        return _no_such_thing(world, rng)
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
    where = place or rng.choice(("", " in the video", " in the clip", " in this video", " in it"))
    one, many = article(noun), plural(noun)
    text = rng.choice(
        (f"is there {one}{where}?", f"does {one} appear{where}?", f"do you see {one}{where}?",
         f"can you see {one}{where}?", f"is {one} shown{where}?", f"is there any {noun}{where}?",
         f"are there {rng.choice(('', 'any '))}{many}{where}?", f"do you see any {many}{where}?",
         f"can we see any {many}{where}?", f"does the video show {one}{place}?")
    )  # fmt: skip
    return Question("OE", text, "yes" if yes else "no", ("yes", "no"), relevant, noun)


def _no_such_thing(world: World, rng: Random) -> Question:
    noun = absent_noun(world, rng)
    text, likely = rng.choice(
        (
            (f"what {rng.choice(('does', 'is'))} the {noun} {{}}?", ["moves up", "stays still", "grows"]),
            (f"which way does the {noun} go?", ["left", "up", "right"]),
            (f"what happens to the {noun}?", ["disappears", "shrinks", "spins"]),
            (f"when does the {noun} appear?", ["at the beginning", "in the middle", "at the end"]),
            (f"in which scene is the {noun}?", ["scene one", "scene two", "scene three"]),
        )
    )
    text = text.format("do" if " does " in text else "doing")
    answer = f"there is no {noun}."
    return Question("OE", text, answer, pick_options(rng, answer, likely), (), noun)


def interaction(world: World, rng: Random) -> Question | None:
    """OI: what two things do to each other."""
    scenes = [scene for scene in world.scenes if scene.interaction]
    if not scenes:
        return None
    scene = rng.choice(scenes)
    first, second = scene.actors
    verb = scene.interaction or ""
    relevant = visible((scene, first))
    form = rng.random()
    if form < 0.4:
        text = rng.choice(
            (f"what does the {first.noun} do to the {second.noun}?",
             f"what happens between the {first.noun} and the {second.noun}?",
             f"how does the {first.noun} act towards the {second.noun}?")
        )  # fmt: skip
        answers = [f"{other} it" for other in INTERACTIONS]
        return Question("OI", text, f"{verb} it", pick_options(rng, f"{verb} it", answers), relevant, first.noun)
    if form < 0.55:
        text = rng.choice((f"what does the {first.noun} do?", f"what is the {first.noun} doing?"))
        answers = [f"{other} the {second.noun}" for other in INTERACTIONS]
        answer = f"{verb} the {second.noun}"
        return Question("OI", text, answer, pick_options(rng, answer, answers), relevant, first.noun)
    if form < 0.7:
        asked = verb if rng.random() < 0.5 else rng.choice([other for other in INTERACTIONS if other != verb])
        text = f"does the {first.noun} {_bare(asked)} the {second.noun}?"
        return Question("OI", text, "yes" if asked == verb else "no", ("yes", "no"), relevant, first.noun)
    if form < 0.85:
        text, actor = f"{rng.choice(('what', 'who'))} {verb} the {second.noun}?", first
    else:
        text, actor = f"what does the {first.noun} {_bare(verb)}?", second
    options = pick_options(rng, definite(actor), other_things(world, rng, actor))
    return Question("OI", text, definite(actor), options, relevant, (second if actor is first else first).noun)


def _bare(verb: str) -> str:
    return {"passes": "pass", "pushes": "push"}.get(verb, verb[:-1])


def count(world: World, rng: Random) -> Question | None:
    """MC: how many there are of one thing, also none, or of all."""
    form = rng.random()
    if form < 0.35:
        return _count_all(world, rng)
    if form < 0.45:
        noun = absent_noun(world, rng)
        options = pick_options(rng, NUMBERS[0], NUMBERS[:5])
        return Question("MC", _how_many(plural(noun), "", rng), NUMBERS[0], options, (), noun)
    several = [pair for pair in world.cast() if pair[1].copies > 1]
    single = [pair for pair in world.cast() if pair[1].copies == 1]
    pool = several if several and (not single or rng.random() < 0.8) else single if rng.random() < 0.35 else []
    if not pool:
        return None
    scene, actor = rng.choice(pool)
    place = ""
    if len(world.scenes) > 1 and rng.random() < 0.25:
        place = f" in {scene_name(rng, world.scenes.index(scene))}"
    text, number = _how_many(plural(actor.noun), place, rng), NUMBERS[actor.copies]
    return Question("MC", text, number, pick_options(rng, number, NUMBERS[:5]), visible((scene, actor)), actor.noun)


def _how_many(many: str, place: str, rng: Random) -> str:
    if place:
        return f"how many {many} are {rng.choice(('', 'there '))}{place.lstrip()}?"
    return rng.choice(
        (f"how many {many} are there?", f"how many {many} do you see?", f"count the {many}.",
         f"how many {many} are in the video?", f"how many {many} can you see?", f"how many {many}?")
    )  # fmt: skip


def _count_all(world: World, rng: Random) -> Question:
    index = rng.randrange(len(world.scenes))
    scene = world.scenes[index]
    kinds = rng.random() < 0.3
    number = NUMBERS[len(scene.actors) if kinds else sum(actor.copies for actor in scene.actors)]
    place = f" in {scene_name(rng, index)}" if len(world.scenes) > 1 else ""
    text = f"how many {'kinds of things' if kinds else 'things'} are there{place}?"
    relevant = ((scene.start_seconds, scene.end_seconds),) if place else ()
    return Question("MC", text, number, pick_options(rng, number, NUMBERS[1:5]), relevant)


def direction(world: World, rng: Random) -> Question | None:
    """MD: where a thing moves."""
    moving = [pair for pair in world.soloists() if pair[1].action in MOVES]
    if not moving:
        return None
    scene, actor = rng.choice(moving)
    answer = MOVES[actor.action]
    the, do = definite(actor), auxiliary(actor)
    text = rng.choice(
        (f"in which direction {do} {the} move?", f"which way {do} {the} go?", f"where {do} {the} move?",
         f"what direction {do} {the} move in?", f"which direction {do} {the} go?",
         f"where {be(actor)} {the} going?")
    )  # fmt: skip
    return Question(
        "MD", text, answer, pick_options(rng, answer, list(MOVES.values())), visible((scene, actor)), actor.noun
    )


def repeats(world: World, rng: Random) -> Question | None:
    """AC: how often a thing jumps or blinks."""
    acting = [pair for pair in world.soloists() if pair[1].action in (Action.JUMP, Action.BLINK)]
    if not acting:
        return None
    scene, actor = max(rng.sample(acting, len(acting)), key=lambda pair: pair[1].repeats * rng.random())
    if actor.repeats == 1 and rng.random() < 0.75:
        return None
    asked, number = actor.action, NUMBERS[actor.repeats]
    if rng.random() < 0.2:
        asked, number = OPPOSITES[asked], NUMBERS[0]
    verb, the, do = asked.plural, definite(actor), auxiliary(actor)
    text = rng.choice((f"how many times {do} {the} {verb}?", f"how often {do} {the} {verb}?"))
    return Question("AC", text, number, pick_options(rng, number, NUMBERS[:4]), visible((scene, actor)), actor.noun)


_CHANGES = {
    Action.GROW: "size", Action.SHRINK: "size", Action.RECOLOUR: "colour", Action.STAY: "nothing",
    Action.LEFT: "position", Action.RIGHT: "position", Action.UP: "position", Action.DOWN: "position",
}  # fmt: skip


def state_change(world: World, rng: Random) -> Question | None:
    """SC: what changes about a thing, its colour before or after, which thing changes."""
    form = rng.random()
    if form < 0.35:
        return _changed_property(world, rng)
    if form < 0.7:
        return _colour(world, rng)
    action = rng.choice((Action.GROW, Action.SHRINK, Action.RECOLOUR, Action.DISAPPEAR, Action.SPIN))
    doing = [pair for pair in world.soloists() if pair[1].action is action]
    if len(doing) != 1:
        return None
    actor = doing[0][1]
    verbs = {
        Action.GROW: ("grows", "gets bigger"),
        Action.SHRINK: ("shrinks", "gets smaller"),
        Action.RECOLOUR: ("changes colour", "changes color", "changes its colour"),
    }.get(action, (action.singular,))
    text = f"{rng.choice(('which thing', 'what'))} {rng.choice(verbs)}?"
    return Question("SC", text, definite(actor), pick_options(rng, definite(actor), other_things(world, rng, actor)))


def _changed_property(world: World, rng: Random) -> Question | None:
    kinds: dict[str, list[tuple[Scene, Actor]]] = {}
    for scene, actor in world.soloists():
        if actor.action in _CHANGES:
            kinds.setdefault(_CHANGES[actor.action], []).append((scene, actor))
    if not kinds:
        return None
    answer = rng.choice(sorted(kinds))
    subject = rng.choice(kinds[answer])
    text = rng.choice((f"what changes about {definite(subject[1])}?", f"what about {definite(subject[1])} changes?"))
    options = pick_options(rng, answer, sorted(set(_CHANGES.values())))
    return Question("SC", text, answer, options, visible(subject), subject[1].noun)


def _colour(world: World, rng: Random) -> Question | None:
    shapes = [pair for pair in world.cast() if pair[1].colour]
    lone = [p for p in shapes if sum(q[1].sprite == p[1].sprite for q in shapes) == 1]
    if not lone:
        return None
    subject = max(rng.sample(lone, len(lone)), key=lambda pair: pair[1].colour_after is not None)
    actor = subject[1]
    end = actor.colour_after is not None and rng.random() < 0.5
    answer = (actor.colour_after if end else actor.colour) or ""
    the = f"the {actor.name.split()[-1]}"
    moments = (" at the end", " in the end") if end else (" at first", " at the start", " at the beginning")
    when = rng.choice(moments) if actor.colour_after else ""
    forms = [f"{be(actor)} {the}{when}"]
    if end:
        forms += [f"{auxiliary(actor)} {the} {verb}" for verb in ("become", "get", "turn", "change to", "have now")]
    elif not when:
        forms.append(f"{auxiliary(actor)} {the} have")
    text = f"what {rng.choice(('colour', 'color'))} {rng.choice(forms)}?"
    options = pick_options(rng, answer, list(COLOURS))
    return Question("SC", text, answer, options, visible(subject), actor.noun.split()[-1])


def antonym(world: World, rng: Random) -> Question | None:
    """AA: which of two opposite actions, or whether one happens."""
    pairs = [pair for pair in world.soloists() if pair[1].action in OPPOSITES]
    if not pairs:
        return None
    scene, actor = rng.choice(pairs)
    if rng.random() < 0.3:
        return _does_it(scene, actor, rng)
    actions = rng.sample([actor.action, OPPOSITES[actor.action]], 2)
    text = f"{auxiliary(actor)} {definite(actor)} {actions[0].plural} or {actions[1].plural}?"
    options = tuple(action.singular if actor.copies == 1 else action.plural for action in actions)
    return Question("AA", text, actor.verb, options, visible((scene, actor)), actor.noun)


def _does_it(scene: Scene, actor: Actor, rng: Random) -> Question | None:
    """Whether it does something. Not whether it appears, which would ask if it exists."""
    asked: Action = rng.choice([other for other in Action if other not in (actor.action, Action.APPEAR)])
    if rng.random() < 0.5:
        asked = actor.action
    elif rng.random() < 0.5:
        asked = OPPOSITES[actor.action]
    if asked is Action.APPEAR:
        return None
    text = f"{auxiliary(actor)} {definite(actor)} {asked.plural}?"
    answer = "yes" if asked is actor.action else "no"
    return Question("AA", text, answer, ("yes", "no"), visible((scene, actor)), actor.noun)


def action(world: World, rng: Random) -> Question | None:
    """FA: what a thing does."""
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
