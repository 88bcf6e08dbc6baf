"""A generated world in the shape of SQuAD 2.0: paragraphs of facts, and questions on them.

Every paragraph states a few facts about several towns, ships, lutes or scholars. A question asks
for one fact in another wording. An unanswerable question asks for a fact that the paragraph states
only of another thing, or about a name that is not in the paragraph. A name belongs to one split
only, so a model trained on "train" is tested on unseen names. world.yaml holds the words.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import yaml

PARAGRAPHS = {"train": 1400, "validation": 100}
PARAGRAPHS_PER_ARTICLE = 10
QUESTIONS = 6
IMPOSSIBLE = 0.36


_FOUND: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("world.yaml").read_text())
WORDS, SYLLABLES = (
    {name: words.split() for name, words in _FOUND[key].items()} for key in ("words", "syllables")
)
KINDS: list[dict[str, Any]] = _FOUND["kinds"]


@dataclass(eq=False)
class Fact:
    """One fact of the world, stated in its paragraph or omitted."""

    kind: dict[str, Any]  # of KINDS
    relation: dict[str, str]  # of those of its kind
    thing: str
    value: str
    places: dict[str, int] = field(default_factory=dict)  # "x", "v" -> first character, if stated


class _Paragraph:
    """A written paragraph of `split`, whose facts and words are drawn by `rng`."""

    def __init__(self, rng: Random, split: str) -> None:
        self.rng, self.split = rng, split
        self.used: set[str] = set()  # words
        self.told: list[Fact] = []  # thing by thing
        while len(self.told) < 5:
            self.told, self.untold = self._facts()
        self.context = self._write()

    def _form(self, forms: str) -> str:
        return self.rng.choice(forms.split(" | "))

    def _word(self, ends: str = "ends") -> str:
        """Compose a word of SYLLABLES that belongs to the split, by the word's checksum."""
        draw = self.rng.choice
        while True:
            middle = draw(SYLLABLES["middles"]) if self.rng.random() < 0.4 else ""
            word = (draw(SYLLABLES["beginnings"]) + middle + draw(SYLLABLES[ends])).capitalize()
            if (crc32(word.encode()) % 4 == 0) == (self.split == "validation"):
                return word

    def _draw(self, sort: str) -> str:
        """Draw a value of this sort from words that are not used, and count them as used."""
        while True:
            if sort in WORDS:
                words = [self.rng.choice(WORDS[sort])]
            elif sort == "year":
                words = [str(self.rng.randrange(1100, 1900))]
            elif sort == "person":
                words = [self._word(), self._word()]
            else:
                words = [self._word("town_ends" if sort in ("town", "place") else "ends")]
            if not self.used.intersection(words):
                self.used.update(words)
                return " ".join(words)

    def _facts(self) -> tuple[list[Fact], list[Fact]]:
        """Draw the facts that the paragraph states, and those that it omits."""
        rng, told, untold = self.rng, list[Fact](), list[Fact]()
        counts = zip(rng.sample(KINDS, 2), rng.choice(((4, 0), (5, 0), (3, 2))), strict=True)
        for kind, count in counts:
            relations = rng.sample(kind["relations"], 2)
            for thing in [self._draw(kind["sort"]) for _ in range(count)]:
                for relation in rng.sample(relations, len(relations)):
                    fact = Fact(kind, relation, thing, self._draw(relation["sort"]))
                    (told if rng.random() < 0.75 else untold).append(fact)
        return told, untold

    def _write(self) -> str:
        """Return the text, and note where things and values stand in it."""
        text, kind, thing = "", None, None  # those of the fact before
        for fact in self.told:
            if fact.kind is not kind:
                opening = self._form(fact.kind["opening"])
                text += opening + " " if opening else ""
            follows = fact.thing == thing and self.rng.random() < 0.5
            form = self._form(fact.relation["later" if follows else "says"])
            slots = {"x": fact.thing, "v": fact.value}
            for slot in slots:
                before, found, _ = form.partition("{" + slot + "}")
                if found:
                    fact.places[slot] = len(text) + len(before.format(**slots))
            sentence = form.format(**slots)
            text += sentence[0].upper() + sentence[1:] + ". "
            kind, thing = fact.kind, fact.thing
        return text.rstrip()

    def _span(self, fact: Fact, slot: str) -> dict:
        """Return the fact's thing ("x") or value ("v") as it is written in the paragraph."""
        start, length = fact.places[slot], len(fact.thing if slot == "x" else fact.value)
        return {"text": self.context[start : start + length], "answer_start": start}

    def _shorter_and_longer(self, fact: Fact, slot: str, span: dict) -> list[dict]:
        """Return answers that a second annotator may choose: a last name, "river" and its name."""
        start, text = span["answer_start"], span["text"]
        first, _, last = text.partition(" ")
        if last:
            return [{"text": last, "answer_start": start + len(first) + 1}]
        river = slot == "v" and fact.relation["sort"] == "river"
        if river and self.context[:start].endswith("river "):
            return [{"text": "river " + text, "answer_start": start - len("river ")}]
        return []

    def _answerable(self) -> tuple[str, dict]:
        """Ask for the value of a told fact, or now and then for the thing that has the value."""
        fact = self.rng.choice(self.told)
        slot = "x" if "x" in fact.places and self.rng.random() < 0.25 else "v"
        forms = fact.relation["back" if slot == "x" else "asks"]
        answers = [self._span(fact, slot)]
        if self.split == "validation":
            answers += self._shorter_and_longer(fact, slot, answers[0])
        question = self._form(forms).format(x=fact.thing, v=fact.value)
        return question, {"answers": answers, "is_impossible": False}

    def _impossible(self) -> tuple[str, dict]:
        """Ask for an untold fact whose relation is told of another thing, or about a new name."""
        rng, things = self.rng, {fact.thing for fact in self.told}
        like = {fact.relation["asks"]: fact for fact in rng.sample(self.told, len(self.told))}
        missing = [f for f in self.untold if f.relation["asks"] in like and f.thing in things]
        if missing and rng.random() < 0.75:
            fact = rng.choice(missing)
            asks, thing = fact.relation["asks"], fact.thing
        else:
            asks, fact = rng.choice(list(like.items()))
            thing = self._draw(fact.kind["sort"])
        plausible = [self._span(like[asks], "v")]
        question = self._form(asks).format(x=thing)
        return question, {"answers": [], "plausible_answers": plausible, "is_impossible": True}

    def ask(self) -> dict[str, dict]:
        """Return QUESTIONS different questions, each with what SQuAD has on it."""
        qas: dict[str, dict] = {}
        while len(qas) < QUESTIONS:
            draw = self._impossible if self.rng.random() < IMPOSSIBLE else self._answerable
            question, rest = draw()
            qas.setdefault(question, rest)
        return qas


def generate(split: str, seed: int = 0, paragraphs: int | None = None) -> dict:
    """Generate a split of the world in the official SQuAD 2.0 JSON shape, deterministically.

    `split` is "train" or "validation"; `paragraphs` have QUESTIONS questions each, and their number
    is by default that of PARAGRAPHS.
    """
    rng, made = Random(f"{split} {seed}"), []
    for p in range(PARAGRAPHS[split] if paragraphs is None else paragraphs):
        paragraph, qas = _Paragraph(rng, split), []
        for q, (question, rest) in enumerate(paragraph.ask().items()):
            digest = hashlib.sha256(f"{split} {seed} {p} {q}".encode()).hexdigest()
            qas.append({"id": digest[:24], "question": question, **rest})
        made.append({"context": paragraph.context, "qas": qas})
    articles = [
        {"title": f"Chronicle_{number}", "paragraphs": made[at : at + PARAGRAPHS_PER_ARTICLE]}
        for number, at in enumerate(range(0, len(made), PARAGRAPHS_PER_ARTICLE), 1)
    ]
    return {"version": "v2.0", "data": articles}
