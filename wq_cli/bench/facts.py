"""Facts about invented people and questions on them: text that stands in for a video where no video model is at hand.

Two sets of words that share none make two worlds: one to choose settings on, one to report on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

World = Literal["tune", "test"]

_PEOPLE = {
    "tune": "Mara Holt,Jonas Reed,Priya Nair,Tomas Vale,Lena Fischer,Omar Haddad,Ingrid Solberg,Pavel Novak,"
    "Sofia Marin,Kenji Mori,Clara Dunn,Felix Bauer,Amina Yusuf,Victor Lang,Nora Quinn,Hugo Silva,Gwen Ashby,"
    "Rolf Hansen,Tessa Boyd,Miles Corrigan,Wanda Pike,Dario Fonti,Elsa Brook,Quentin Marsh,Yara Lopes,Bruno Keller,"
    "Dina Azar,Edgar Stone,Paula Finch,Ravi Menon,Judith Lamb",
    "test": "Alice Brandt,Daniel Okoro,Maria Costa,Stefan Kraus,Yuki Tanaka,Peter Lindqvist,Rosa Delgado,Ivan Petrov,"
    "Helen Murray,Samuel Adler,Greta Nilsson,Marco Rossi,Fatima Rahman,Oscar Jensen,Emily Carter,Rajesh Gupta,"
    "Louise Tanner,Georg Weiss,Carmen Ortiz,Henry Blake,Anika Sharma,Leon Dupont,Ruth Goldman,Walter Frost,Zoe Papas,"
    "Simon Hale,Bella Conti,Arthur Kent,Mina Sato,Gustav Holm,Teresa Pinto",
}
_CITIES = {
    "tune": "Lisbon,Oslo,Cairo,Prague,Lima,Dublin,Kyoto,Naples,Geneva,Havana,Bergen,Delhi,Athens,Quito,Riga,Porto",
    "test": "Vienna,Madrid,Boston,Nairobi,Seoul,Warsaw,Tunis,Zurich,Milan,Denver,Hanoi,Bogota,Glasgow,Ankara,Sydney",
}
_JOBS = {
    "tune": "baker,pilot,dentist,painter,farmer,lawyer,plumber,violinist,judge,fisherman,tailor,chemist,sailor",
    "test": "nurse,carpenter,barber,butcher,driver,journalist,florist,teacher,librarian,mechanic,soldier,waiter,writer",
}
_FOODS = {
    "tune": "soup,rice,bread,pasta,cheese,salad,fish,honey,apples,beans,pancakes,olives",
    "test": "cake,potatoes,nuts,grapes,noodles,eggs,cherries,mushrooms,butter,plums,chicken,tomatoes",
}
_CARS = {
    "tune": "red,green,blue,yellow,purple,orange",
    "test": "white,black,brown,grey,pink,silver",
}
_YEARS = {"tune": (1950, 1978), "test": (1979, 2006)}


@dataclass(frozen=True)
class Fact:
    """One thing to know about a person.

    Attributes:
        question: How it is asked for.
        begin: How the fact, and its answer, begins.
        answer: How it goes on.
    """

    question: str
    begin: str
    answer: str


def facts_of(world: World, seed: int) -> list[list[Fact]]:
    """Five facts about each of the world's people, in an order and with details that the seed decides."""
    draw = random.Random(f"{world} {seed}")
    people = _PEOPLE[world].split(",")
    draw.shuffle(people)
    facts = []
    for name in people:
        city, job, food, car = (draw.choice(words[world].split(",")) for words in (_CITIES, _JOBS, _FOODS, _CARS))
        year = draw.randrange(*_YEARS[world])
        facts.append(
            [
                Fact(f"In which city does {name} live?", f"{name} lives in", city),
                Fact(f"What is the job of {name}?", f"{name} works as a", job),
                Fact(f"In which year was {name} born?", f"{name} was born in", str(year)),
                Fact(f"What does {name} like to eat?", f"{name} likes to eat", food),
                Fact(f"What colour is the car of {name}?", f"The car of {name} is", car),
            ]
        )
    return facts


def text_of(facts: list[list[Fact]]) -> str:
    """All facts, person after person."""
    return " ".join(f"{fact.begin} {fact.answer}." for person in facts for fact in person)


def questions_on(facts: list[list[Fact]], count: int, seed: int) -> list[Fact]:
    """One fact each about some of the people, each kind equally often."""
    people = random.Random(f"questions {seed}").sample(facts, count)
    return [person[index % len(person)] for index, person in enumerate(people)]
