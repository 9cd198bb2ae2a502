"""The nouns, colours and actions of the demo world, as words; the order of `SPRITES` is that of the atlas."""

from __future__ import annotations

from enum import Enum

EMOJI = {
    "dog": "🐶", "cat": "🐈", "rabbit": "🐇", "fox": "🦊", "bear": "🐻", "panda": "🐼",
    "tiger": "🐯", "lion": "🦁", "cow": "🐄", "pig": "🐷", "frog": "🐸", "monkey": "🐵",
    "chicken": "🐔", "penguin": "🐧", "duck": "🦆", "owl": "🦉", "horse": "🐴", "unicorn": "🦄",
    "bee": "🐝", "snail": "🐌", "turtle": "🐢", "snake": "🐍", "octopus": "🐙", "crab": "🦀",
    "whale": "🐳", "dolphin": "🐬", "elephant": "🐘", "camel": "🐫", "apple": "🍎", "banana": "🍌",
    "pear": "🍐", "lemon": "🍋", "pineapple": "🍍", "carrot": "🥕", "mushroom": "🍄", "pizza": "🍕",
    "burger": "🍔", "cake": "🎂", "cookie": "🍪", "cactus": "🌵", "tree": "🌳", "tulip": "🌷",
    "sunflower": "🌻", "car": "🚗", "bus": "🚌", "tractor": "🚜", "bicycle": "🚲", "train": "🚂",
    "rocket": "🚀", "boat": "⛵", "helicopter": "🚁", "house": "🏠", "castle": "🏰", "umbrella": "☂",
    "guitar": "🎸", "drum": "🥁", "balloon": "🎈", "gift": "🎁", "key": "🔑", "bulb": "💡",
    "clock": "⏰", "book": "📕", "camera": "📷", "ball": "⚽", "crown": "👑", "hat": "🎩",
    "shoe": "👟", "robot": "🤖", "ghost": "👻", "bell": "🔔", "trophy": "🏆", "hammer": "🔨",
    "ladybug": "🐞", "butterfly": "🦋", "watermelon": "🍉", "anchor": "⚓",
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond")
SPRITES = (*EMOJI, *SHAPES)

COLOURS = {
    "red": (0.86, 0.10, 0.12),
    "orange": (0.98, 0.50, 0.02),
    "yellow": (0.98, 0.86, 0.05),
    "green": (0.06, 0.58, 0.16),
    "blue": (0.08, 0.28, 0.90),
    "purple": (0.50, 0.10, 0.66),
    "black": (0.06, 0.06, 0.07),
    "white": (1.00, 1.00, 1.00),
}

# Pale, so that things of every colour stand out.
BACKGROUNDS = {
    "blue": (0.66, 0.83, 0.98),
    "green": (0.66, 0.90, 0.66),
    "pink": (0.99, 0.73, 0.83),
    "yellow": (0.99, 0.93, 0.62),
    "purple": (0.80, 0.72, 0.96),
    "grey": (0.72, 0.73, 0.75),
}

# A turn of these is hard to see.
ROUND = frozenset({"circle", "ball", "cookie", "square", "diamond", "sunflower"})

PLURALS = {"cactus": "cacti", "bus": "buses", "octopus": "octopuses", "butterfly": "butterflies"}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six")
ORDINALS = ("first", "second", "third", "fourth")


class Action(Enum):
    """What a thing does during its scene: verb for one thing, verb for several."""

    STAY = ("stays still", "stay still")
    LEFT = ("moves left", "move left")
    RIGHT = ("moves right", "move right")
    UP = ("moves up", "move up")
    DOWN = ("moves down", "move down")
    GROW = ("grows", "grow")
    SHRINK = ("shrinks", "shrink")
    SPIN = ("spins", "spin")
    APPEAR = ("appears", "appear")
    DISAPPEAR = ("disappears", "disappear")
    BLINK = ("blinks", "blink")
    JUMP = ("jumps", "jump")
    RECOLOUR = ("changes colour", "change colour")

    @property
    def singular(self) -> str:
        """Third person singular."""
        return self.value[0]

    @property
    def plural(self) -> str:
        """Third person plural, also the infinitive."""
        return self.value[1]


MOVES = {Action.LEFT: "left", Action.RIGHT: "right", Action.UP: "up", Action.DOWN: "down"}
OPPOSITES = {
    Action.LEFT: Action.RIGHT,
    Action.UP: Action.DOWN,
    Action.GROW: Action.SHRINK,
    Action.APPEAR: Action.DISAPPEAR,
    Action.JUMP: Action.BLINK,
    Action.SPIN: Action.STAY,
}
OPPOSITES |= {b: a for a, b in OPPOSITES.items()}

INTERACTIONS = ("meets", "passes", "pushes", "chases")


def plural(noun: str) -> str:
    """Plural of a noun of this world, its colour word kept in front."""
    *colour, head = noun.split()
    return " ".join([*colour, PLURALS.get(head, head + "s")])


def article(noun: str) -> str:
    """The noun with `a` or `an`."""
    return f"{'an' if noun[0] in 'aeo' or noun == 'umbrella' else 'a'} {noun}"
