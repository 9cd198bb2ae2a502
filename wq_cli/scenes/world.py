"""A clip as a description: scenes, who is in them and what they do; `sample` turns it into numbers for the renderer.

Coordinates are fractions of the frame (x to the right, y down), times are seconds. A seed decides everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np
from numpy.typing import NDArray

from wq_cli.scenes.things import (
    BACKGROUNDS,
    COLOURS,
    EMOJI,
    INTERACTIONS,
    MOVES,
    ROUND,
    SHAPES,
    SPRITES,
    Action,
    plural,
)

LAYERS = 4
LENGTH_SECONDS = (4, 20)
MAX_SCENES = 4
MIN_FRAMES_PER_SCENE = 3.2
MIN_FRAMES_PER_PHASE = 1.3
JUMP_HEIGHT = 0.55  # of its size

# Held-out seeds lie above every training seed, and those of rendered clips above both.
TRAINING_SEEDS = range(0, 2**48)
HELD_OUT_SEEDS = range(2**48, 2**49)
CLIP_SEEDS = range(2**49, 2**50)

Keyframes = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True)
class Actor:
    """One noun of a scene: a thing, or several of the same.

    Attributes:
        noun: What it is called, e.g. `dog` or `red star`; unique in the clip.
        sprite: Index in the atlas.
        paths: One per copy: (time within the scene in [0, 1], x, y), linear in between.
        size: Longer side as a fraction of the frame.
        tilt_degrees: Resting angle.
        repeats: How often it jumps or blinks.
        onset: Time within the scene in [0, 1] at which it appears, disappears or changes colour.
        turn_degrees: Angle swept by a spin.
    """

    noun: str
    sprite: int
    colour: str | None
    action: Action
    paths: tuple[Keyframes, ...]
    size: float
    tilt_degrees: float = 0.0
    repeats: int = 0
    onset: float = 0.5
    colour_after: str | None = None
    turn_degrees: float = 0.0

    @property
    def copies(self) -> int:
        """How many of it there are."""
        return len(self.paths)

    @property
    def name(self) -> str:
        """The noun in the right number."""
        return self.noun if self.copies == 1 else plural(self.noun)

    @property
    def verb(self) -> str:
        """The action in the right number."""
        return self.action.singular if self.copies == 1 else self.action.plural


@dataclass(frozen=True)
class Scene:
    """A stretch of time with one background, its actors in reading order.

    With an `interaction` there are two actors, and it is what the first does to the second.
    """

    start_seconds: float
    end_seconds: float
    background: str
    light: tuple[float, float]
    actors: tuple[Actor, ...]
    interaction: str | None = None

    def visible_seconds(self, actor: Actor) -> tuple[float, float]:
        """(start, end) of the time in which one of its actors is on the screen."""
        change = self.start_seconds + actor.onset * (self.end_seconds - self.start_seconds)
        if actor.action is Action.APPEAR:
            return change, self.end_seconds
        if actor.action is Action.DISAPPEAR:
            return self.start_seconds, change
        return self.start_seconds, self.end_seconds


@dataclass(frozen=True)
class World:
    """A whole clip."""

    seed: int
    seconds: float
    scenes: tuple[Scene, ...]

    def cast(self) -> list[tuple[Scene, Actor]]:
        """Every actor with its scene, in order of time."""
        return [(scene, actor) for scene in self.scenes for actor in scene.actors]

    def soloists(self) -> list[tuple[Scene, Actor]]:
        """Those outside interactions."""
        return [(scene, actor) for scene, actor in self.cast() if scene.interaction is None]


@dataclass(frozen=True)
class FrameArrays:
    """What the renderer draws, one row per frame.

    Attributes:
        sprite: [F, LAYERS] int64, index in the atlas.
        pose: [F, LAYERS, 5] float32: x, y, size, angle in radians, opacity (0: nothing in this layer).
        tint: [F, LAYERS, 3] float32, multiplies the sprite's colour.
        background: [F, 8] float32: colour at the top, colour at the bottom, x and y of the light.
    """

    sprite: NDArray[np.int64]
    pose: NDArray[np.float32]
    tint: NDArray[np.float32]
    background: NDArray[np.float32]


def frame_times(seconds: float, frames: int) -> NDArray[np.float64]:
    """Middles of `frames` equal stretches of the clip, in seconds [F]."""
    return (np.arange(frames) + 0.5) * seconds / frames


def generate(seed: int, *, frames: int = 16, seconds: float | None = None, difficulty: float = 1.0) -> World:
    """Makes up a clip whose every fact can be seen in `frames` evenly spread frames (or more).

    Args:
        seed: Decides everything.
        frames: Frames it will be watched with, at least 8; scenes and repeats are long enough for these.
        seconds: Length; a whole number in `LENGTH_SECONDS` when not given.
        difficulty: 0: one scene with one kind of thing; 1: up to four scenes, several things, interactions.
    """
    rng = Random(seed)
    scene_count = 1 + int(rng.random() * (1 + (MAX_SCENES - 1) * difficulty))
    length = float(rng.randint(*LENGTH_SECONDS)) if seconds is None else seconds
    cuts = _cuts(rng, length, min(scene_count, MAX_SCENES), MIN_FRAMES_PER_SCENE * length / frames)
    used: set[str] = set()
    scenes: list[Scene] = []
    for start, end in pairwise(cuts):
        actors, interaction = _cast(rng, used, (end - start) * frames / length, difficulty)
        colours = {actor.colour for actor in actors} | {actor.colour_after for actor in actors}
        banned = colours | {scenes[-1].background if scenes else None} | ({"yellow"} if "white" in colours else set())
        background = rng.choice([name for name in BACKGROUNDS if name not in banned])
        scenes.append(Scene(start, end, background, (rng.random(), rng.random()), actors, interaction))
    return World(seed, length, tuple(scenes))


def _cuts(rng: Random, length: float, count: int, shortest: float) -> list[float]:
    """Scene boundaries on whole seconds, at least `shortest` apart; fewer scenes where they do not fit."""
    gap = max(1, int(np.ceil(shortest - 1e-9)))
    while count > 1 and count * gap > length:
        count -= 1
    spare = int(length) - count * gap
    marks = sorted(rng.randint(0, max(spare, 0)) for _ in range(count - 1))
    return [0.0, *(float(mark + gap * (i + 1)) for i, mark in enumerate(marks)), length]


def _cast(rng: Random, used: set[str], frames: float, difficulty: float) -> tuple[tuple[Actor, ...], str | None]:
    """Actors of one scene that is watched with `frames` frames."""
    kinds = ("solo", "group", "pair", "mixed", "trio", "interact")
    hard = (0.24, 0.16, 0.2, 0.12, 0.1, 0.18)
    weights = [difficulty * h + (1 - difficulty) * e for h, e in zip(hard, (0.75, 0.25, 0, 0, 0, 0), strict=True)]
    kind = rng.choices(kinds, weights)[0]
    if kind == "interact" and frames >= 5:
        return _interaction(rng, used)
    copies = {
        "solo": [1],
        "group": [rng.randint(2, 4)],
        "pair": [1, 1],
        "interact": [1, 1],
        "mixed": rng.choice([[2, 1], [1, 2], [3, 1], [1, 3], [2, 2]]),
        "trio": [1, 1, 1],
    }[kind]
    cells = _cells(rng, sum(copies))
    placed = []
    for count in copies:
        own, cells = cells[:count], cells[count:]
        placed.append((min(own, key=_reading_order), _actor(rng, used, own, frames)))
    placed.sort(key=lambda pair: _reading_order(pair[0]))
    return tuple(actor for _, actor in placed), None


def _reading_order(cell: tuple[float, float, float, float]) -> tuple[float, float]:
    return cell[1], cell[0]


def _cells(rng: Random, count: int) -> list[tuple[float, float, float, float]]:
    """Regions (left, top, right, bottom) that keep things apart."""
    if count == 1:
        return [(0, 0, 1, 1)]
    if count == 2:
        sides = [(0, 0, 0.5, 1), (0.5, 0, 1, 1)] if rng.random() < 0.5 else [(0, 0, 1, 0.5), (0, 0.5, 1, 1)]
        return rng.sample(sides, 2)
    quarters = [(x, y, x + 0.5, y + 0.5) for y in (0, 0.5) for x in (0, 0.5)]
    return rng.sample(quarters, count)


def _noun(rng: Random, used: set[str]) -> tuple[str, int, str | None]:
    """A noun that the clip has not used, its sprite, its colour when it is a shape."""
    while True:
        if rng.random() < 0.3:
            colour = rng.choice(list(COLOURS))
            shape = rng.choice(SHAPES)
            noun, sprite = f"{colour} {shape}", SPRITES.index(shape)
        else:
            colour, noun = None, rng.choice(list(EMOJI))
            sprite = SPRITES.index(noun)
        if noun not in used:
            used.add(noun)
            return noun, sprite, colour


def _actor(rng: Random, used: set[str], cells: list[tuple[float, float, float, float]], frames: float) -> Actor:
    noun, sprite, colour = _noun(rng, used)
    most_repeats = min(3, int((frames / MIN_FRAMES_PER_PHASE - 1) / 2))
    actions = list(Action)
    if most_repeats < 1:
        actions = [a for a in actions if a not in (Action.BLINK, Action.JUMP)]
    if colour is None:
        actions.remove(Action.RECOLOUR)
    else:
        actions += [Action.RECOLOUR] * 2
    if SPRITES[sprite] in ROUND:
        actions.remove(Action.SPIN)
    action = rng.choice(actions)
    colour_after = None
    if action is Action.RECOLOUR:
        colour_after = rng.choice([c for c in COLOURS if c != colour and f"{c} {SPRITES[sprite]}" not in used])
        used.add(f"{colour_after} {SPRITES[sprite]}")
    left, top, right, bottom = cells[0]
    room = min(right - left, bottom - top)
    size = (
        rng.uniform(0.36, 0.52) if room == 1 else rng.uniform(0.3, 0.36) if len(cells) < 3 else rng.uniform(0.28, 0.33)
    )
    if room < 1 and (right - left) + (bottom - top) == 1:
        size = rng.uniform(0.27, 0.32)
    direction, shift = _offsets(rng, action, right - left, bottom - top, size)
    return Actor(
        noun,
        sprite,
        colour,
        action,
        tuple(_path(cell, direction, shift) for cell in cells),
        size,
        tilt_degrees=rng.uniform(-8, 8),
        repeats=_repeats(rng, most_repeats) if action in (Action.BLINK, Action.JUMP) else 0,
        onset=rng.uniform(0.4, 0.6),
        colour_after=colour_after,
        turn_degrees=rng.choice((-1, 1)) * rng.uniform(250, 400),
    )


def _repeats(rng: Random, most: int) -> int:
    """More often many than few, because short scenes only have room for one."""
    return rng.choices(range(1, most + 1), range(1, most + 1))[0]


def _offsets(
    rng: Random, action: Action, width: float, height: float, size: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Half the distance moved (x, y) and how far the middle of the path lies from the middle of the cell."""
    lift = JUMP_HEIGHT * size if action is Action.JUMP else 0.0
    free_x, free_y = max(width - size, 0.0) / 2, max(height - size - lift, 0.0) / 2
    half_x = half_y = 0.0
    if action in MOVES:
        reach = rng.uniform(0.75, 1.0)
        if action in (Action.LEFT, Action.RIGHT):
            half_x = max(free_x, 0.1) * reach * (1 if action is Action.RIGHT else -1)
        else:
            half_y = max(free_y, 0.1) * reach * (1 if action is Action.DOWN else -1)
    shift_x = rng.uniform(-0.9, 0.9) * max(free_x - abs(half_x), 0)
    shift_y = rng.uniform(-0.9, 0.9) * max(free_y - abs(half_y), 0)
    return (half_x, half_y), (shift_x, shift_y + lift / 2)


def _path(cell: tuple[float, float, float, float], half: tuple[float, float], shift: tuple[float, float]) -> Keyframes:
    x = (cell[0] + cell[2]) / 2 + shift[0]
    y = (cell[1] + cell[3]) / 2 + shift[1]
    return ((0.0, x - half[0], y - half[1]), (1.0, x + half[0], y + half[1]))


def _interaction(rng: Random, used: set[str]) -> tuple[tuple[Actor, ...], str]:
    """Two things on one line; the first does something to the second."""
    verb = rng.choice(INTERACTIONS)
    side = rng.choice((-1, 1))
    size = rng.uniform(0.24, 0.28)
    y = rng.uniform(0.3, 0.7)
    lane = 0.1 if verb == "passes" else 0.0
    first, second = {
        "meets": (((0.0, -0.37), (0.6, 0.2 - size - 0.02), (1.0, 0.2 - size - 0.02)), ((0.0, 0.2), (1.0, 0.2))),
        "passes": (((0.0, -0.38), (1.0, 0.38)), ((0.0, 0.0), (1.0, 0.0))),
        "pushes": (
            ((0.0, -0.38), (0.4, -size), (1.0, 0.37 - size)),
            ((0.0, 0.0), (0.4, 0.0), (1.0, 0.37)),
        ),
        "chases": (((0.0, -0.38), (1.0, 0.04)), ((0.0, -0.06), (1.0, 0.36))),
    }[verb]
    actors = []
    for track, offset in ((first, -lane), (second, lane)):
        noun, sprite, colour = _noun(rng, used)
        path = tuple((u, 0.5 + side * x, y + offset) for u, x in track)
        actors.append(Actor(noun, sprite, colour, Action.STAY, (path,), size, rng.uniform(-8, 8)))
    return tuple(actors), verb


def sample(world: World, times: NDArray[np.float64]) -> FrameArrays:
    """The clip at the given times in seconds [F], as arrays for the renderer."""
    frames = len(times)
    sprite = np.zeros((frames, LAYERS), np.int64)
    pose = np.zeros((frames, LAYERS, 5), np.float32)
    tint = np.ones((frames, LAYERS, 3), np.float32)
    background = np.zeros((frames, 8), np.float32)
    owner = np.searchsorted([scene.start_seconds for scene in world.scenes], times, side="right") - 1
    for index, scene in enumerate(world.scenes):
        rows = np.flatnonzero(owner == index)
        if not len(rows):
            continue
        colour = np.asarray(BACKGROUNDS[scene.background], np.float32)
        background[rows] = np.concatenate([colour * 0.45 + 0.55, colour * 0.94, scene.light])
        u = (times[rows] - scene.start_seconds) / (scene.end_seconds - scene.start_seconds)
        layer = 0
        for actor in scene.actors:
            size, angle, opacity, lift = _motion(actor, u)
            for path in actor.paths:
                moments, xs, ys = zip(*path, strict=True)
                x, y = np.interp(u, moments, xs), np.interp(u, moments, ys) - lift
                sprite[rows, layer] = actor.sprite
                pose[rows, layer] = np.stack([x, y, size, angle, opacity], axis=1)
                tint[rows, layer] = _tint(actor, u)
                layer += 1
    return FrameArrays(sprite, pose, tint, background)


def _motion(actor: Actor, u: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Size, angle, opacity and height above the path at scene times u [n]."""
    size = np.full_like(u, actor.size)
    angle = np.full_like(u, np.deg2rad(actor.tilt_degrees))
    opacity, lift = np.ones_like(u), np.zeros_like(u)
    if actor.action is Action.GROW:
        size *= 0.5 + 0.5 * u
    elif actor.action is Action.SHRINK:
        size *= 1 - 0.5 * u
    elif actor.action is Action.SPIN:
        angle += np.deg2rad(actor.turn_degrees) * u
    elif actor.action is Action.APPEAR:
        opacity = (u >= actor.onset).astype(np.float64)
    elif actor.action is Action.DISAPPEAR:
        opacity = (u < actor.onset).astype(np.float64)
    elif actor.action in (Action.BLINK, Action.JUMP):
        phase = u * (2 * actor.repeats + 1)
        active = (phase.astype(int) % 2 == 1) & (phase < 2 * actor.repeats + 1)
        if actor.action is Action.BLINK:
            opacity = (~active).astype(np.float64)
        else:
            lift = active * np.sqrt(np.sin(np.pi * (phase % 1))) * JUMP_HEIGHT * actor.size
    return size, angle, opacity, lift


def _tint(actor: Actor, u: NDArray[np.float64]) -> NDArray[np.float64]:
    if actor.colour is None:
        return np.ones((len(u), 3))
    before = np.asarray(COLOURS[actor.colour])
    after = before if actor.colour_after is None else np.asarray(COLOURS[actor.colour_after])
    return np.where((u >= actor.onset)[:, None], after, before)
