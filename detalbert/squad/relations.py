"""Vocabulary of the generated world, from world.yaml: kinds of things, their relations, wording.

In every form {x} is the thing and {v} the value; a form without {x} follows a sentence on {x}.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Relation:
    """One relation of a thing to a value."""

    sort: str  # of the value: "person", "place", "river", "year" or a key of WORDS
    says: tuple[str, ...]
    later: tuple[str, ...]  # statements that follow one on the thing
    asks: tuple[str, ...]
    back: tuple[str, ...]  # questions for the thing


@dataclass(frozen=True)
class Topic:
    """One kind of thing: the sort of its names, openings of a paragraph on it, its relations."""

    sort: str
    opening: tuple[str, ...]
    relations: tuple[Relation, ...]


def _forms(text: str) -> tuple[str, ...]:
    return tuple(text.split(" | "))


def _relation(value: str, **forms: str) -> Relation:
    return Relation(value, **{name: _forms(text) for name, text in forms.items()})


_FOUND: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("world.yaml").read_text())
WORDS = {sort: words.split() for sort, words in _FOUND["words"].items()}
KINDS = tuple(
    Topic(kind["sort"], _forms(kind["opening"]), tuple(_relation(**r) for r in kind["relations"]))
    for kind in _FOUND["kinds"]
)
