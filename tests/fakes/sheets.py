"""A shop's sheet of questions in plain English: few kinds of them, each in two wordings.

A text is about one thing and states four of six facts; of the questions on it three ask for these,
and one for a fact that the text leaves out. Brands and things meet anew in every text.
"""

import csv
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

COLUMNS = ("question", "context", "answer")
Row = dict[str, str]

BRANDS = (
    "Aurora Nordlux Tefral Bergson Kivo Marelli Osaki Plinth Quorra Rovent Sabine Vectra".split()
)
THINGS = (
    "kettle toaster lamp drill blender heater router printer camera mixer fan scale grill".split()
)
CITIES = "Leeds Turin Lyon Porto Graz Ghent Malmo Tampere Krakow Bilbao Dublin Basel".split()
COLOURS = "red blue white black green silver grey orange".split()


class Fact(NamedTuple):
    """Something that a text may state."""

    draw: Callable[[random.Random], str]  # its value
    sentences: tuple[str, str]
    questions: tuple[str, str]


FACTS = (
    Fact(
        lambda rng: f"{rng.randrange(10, 400)} euros",
        sentences=("It costs {}.", "The price is {}."),
        questions=("How much does the {} cost?", "What is the price of the {}?"),
    ),
    Fact(
        lambda rng: f"{rng.randrange(2, 9)} years",
        sentences=("The warranty lasts {}.", "It comes with a warranty of {}."),
        questions=("How long is the warranty of the {}?", "For how long is the {} under warranty?"),
    ),
    Fact(
        lambda rng: rng.choice(CITIES),
        sentences=("It is made in {}.", "The factory is in {}."),
        questions=("Where is the {} made?", "In which city is the {} made?"),
    ),
    Fact(
        lambda rng: f"{rng.randrange(1, 30)} kg",
        sentences=("It weighs {}.", "Its weight is {}."),
        questions=("How heavy is the {}?", "What does the {} weigh?"),
    ),
    Fact(
        lambda rng: rng.choice(COLOURS),
        sentences=("The colour is {}.", "It is sold in {}."),
        questions=("What colour is the {}?", "In which colour is the {} sold?"),
    ),
    Fact(
        lambda rng: f"{rng.randrange(2, 30) * 100} watts",
        sentences=("It needs {}.", "The motor has {}."),
        questions=("How much power does the {} need?", "How many watts has the {}?"),
    ),
)


def sheet(seed: int, texts: int = 75) -> list[Row]:
    """Return four questions on each of `texts` texts."""
    rng = random.Random(seed)
    rows = []
    for _ in range(texts):
        name = f"{rng.choice(BRANDS)} {rng.choice(THINGS)}"
        facts = rng.sample(FACTS, len(FACTS))
        values = [fact.draw(rng) for fact in facts[:4]]
        sentences = [f"The {name} is a popular product of our shop."]
        for fact, value in zip(facts[:4], values, strict=True):
            sentences.append(rng.choice(fact.sentences).format(value))
        sentences.append("Please ask our staff if anything is unclear.")

        # Three questions with an answer in the text, and one without.
        for fact, answer in zip([*facts[:3], facts[4]], [*values[:3], ""], strict=True):
            question = rng.choice(fact.questions).format(name)
            row = {"question": question, "context": " ".join(sentences), "answer": answer}
            rows.append(row)
    return rows


def write_sheet(path: Path, rows: list[Row]) -> None:
    """Write rows as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
