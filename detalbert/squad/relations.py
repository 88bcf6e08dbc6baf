"""Vocabulary of the generated world, from world.yaml: kinds of things, their relations, wording.

In every form {x} is the thing and {v} the value; a form without {x} follows a sentence on {x}.
"""

from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Relation(NamedTuple):
    """One relation of a thing to a value."""

    sort: str  # of the value: "person", "place", "river", "year" or a key of WORDS
    says: tuple[str, ...]
    later: tuple[str, ...]  # statements that follow one on the thing
    asks: tuple[str, ...]
    back: tuple[str, ...]  # questions for the thing


class Topic(NamedTuple):
    """One kind of thing: the sort of its names, openings of a paragraph on it, its relations."""

    sort: str
    opening: tuple[str, ...]
    relations: tuple[Relation, ...]


def _forms(text: str) -> tuple[str, ...]:
    return tuple(text.split(" | "))


def _relation(value: str, **forms: str) -> Relation:
    return Relation(value, **{name: _forms(text) for name, text in forms.items()})


_FOUND: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("world.yaml").read_text())
WORDS, SYLLABLES = (
    {name: words.split() for name, words in _FOUND[key].items()} for key in ("words", "syllables")
)
KINDS = tuple(
    Topic(kind["sort"], _forms(kind["opening"]), tuple(_relation(**r) for r in kind["relations"]))
    for kind in _FOUND["kinds"]
)
