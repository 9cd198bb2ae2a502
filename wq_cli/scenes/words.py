"""The vocabulary of the demo model: every word the question generator can say, and everyday words around them."""

from __future__ import annotations

import re
from functools import cache

from wq_cli.scenes.questions import questions
from wq_cli.scenes.things import BACKGROUNDS, COLOURS, EMOJI, INTERACTIONS, NUMBERS, ORDINALS, SHAPES, Action, plural
from wq_cli.scenes.world import generate

SPECIAL = ("<pad>", "<unk>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")
ROLES = ("user", "assistant", "system")
CLIPS_READ = 1500

# Fillers of real questions; training sprinkles them over its own so that they carry no meaning.
_EVERYDAY_TEXT = """
    a about actually after again all also always an and animal animals any anybody anyone anything are around as
    at away back be because become becomes been before begin beginning behind being between big bigger bit both
    bottom but by came camera can change clip close come comes could day different do does doing done during
    each else end ends ever every everything exactly explain fast film find finish follow following food for
    frame frames from front full get gets give given go goes going good got had happen happened happening
    happens has have having he hello her here hey hi his how i if image in inside into is it item items its
    itself just know last later leave left less let like list little long look looking looks lot made make many
    maybe me mean meet mention might moment more most move movement moves movie moving much must my name near
    need new next no not nothing now number object objects of off often ok on once only or other our out over
    own part person picture place please point quickly really right same saw say scene scenes screen second
    seconds see seem seen she shot should show showed showing shown shows side since slowly small smaller so
    some somebody someone something soon start starts stay still stop story summarize summary sure take tell
    than thank thanks that the their them then there these they thing things think this those through time times
    to together top toward towards turn turns two under until up us use very video videos visible want was watch
    watching way we well were what when where whether which while who whole whose why will with word words would
    write yes you your
"""
EVERYDAY = tuple(_EVERYDAY_TEXT.split())


@cache
def vocabulary() -> tuple[str, ...]:
    """All tokens in the order of their ids: special tokens, roles, then words by alphabet."""
    text = " ".join((*EMOJI, *map(plural, EMOJI), *map(plural, SHAPES), *SHAPES, *COLOURS, *BACKGROUNDS, *NUMBERS))
    text += " ".join(("", *ORDINALS, *INTERACTIONS, *(form for action in Action for form in action.value), *EVERYDAY))
    text += " " + " ".join(str(number) for number in range(61)) + " a b c d e f s t don ? . , : ; ! ' \" ( ) -"
    words = set(split(text))
    for seed in range(CLIPS_READ):
        for question in questions(generate(seed), seed, 24):
            words.update(split(f"{question.text} {question.answer}"))
    return (*SPECIAL, *ROLES, *sorted(words - {*SPECIAL, *ROLES}))


def split(text: str) -> list[str]:
    """Lower-case words and single punctuation marks."""
    return re.findall(r"\w+|[^\w\s]", text.lower())
