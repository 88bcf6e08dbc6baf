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
from typing import Any, TypedDict
from zlib import crc32

import yaml

PARAGRAPHS = {"train": 1400, "validation": 100}
PARAGRAPHS_PER_ARTICLE = 10
QUESTIONS = 6
IMPOSSIBLE = 0.36


def _split(texts: dict[str, str]) -> dict[str, list[str]]:
    return {name: words.split() for name, words in texts.items()}


_FILE = Path(__file__).with_name("world.yaml")
_WORLD: dict[str, Any] = yaml.safe_load(_FILE.read_text())
WORDS = _split(_WORLD["words"])
SYLLABLES = _split(_WORLD["syllables"])
KINDS: list[dict[str, Any]] = _WORLD["kinds"]


class WrittenSpan(TypedDict):
    """An answer, as SQuAD has it."""

    text: str
    answer_start: int


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
        self.rng = rng
        self.split = split
        self.used: set[str] = set()  # words
        self.stated: list[Fact] = []  # thing by thing
        while len(self.stated) < 5:
            self.stated, self.omitted = self._facts()
        self.context = self._write()

    def _form(self, forms: str) -> str:
        return self.rng.choice(forms.split(" | "))

    def _word(self, ends: str = "ends") -> str:
        """Compose a word of SYLLABLES that belongs to the split, by the word's checksum."""
        draw = self.rng.choice
        while True:
            middle = ""
            if self.rng.random() < 0.4:
                middle = draw(SYLLABLES["middles"])
            beginning = draw(SYLLABLES["beginnings"])
            end = draw(SYLLABLES[ends])
            word = f"{beginning}{middle}{end}".capitalize()
            # A quarter of all words is of the validation alone.
            checksum = crc32(word.encode())
            split = "validation" if checksum % 4 == 0 else "train"
            if split == self.split:
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
            elif sort in ("town", "place"):
                words = [self._word("town_ends")]
            else:
                words = [self._word()]
            if not self.used.intersection(words):
                self.used.update(words)
                return " ".join(words)

    def _facts(self) -> tuple[list[Fact], list[Fact]]:
        """Draw the facts that the paragraph states, and those that it omits."""
        rng = self.rng
        stated: list[Fact] = []
        omitted: list[Fact] = []
        kinds = rng.sample(KINDS, k=2)
        counts = rng.choice(((4, 0), (5, 0), (3, 2)))  # things of each kind
        for kind, count in zip(kinds, counts, strict=True):
            relations = rng.sample(kind["relations"], k=2)
            things = [self._draw(kind["sort"]) for _ in range(count)]
            for thing in things:
                for relation in rng.sample(relations, k=len(relations)):
                    value = self._draw(relation["sort"])
                    fact = Fact(kind, relation=relation, thing=thing, value=value)
                    is_stated = rng.random() < 0.75
                    facts = stated if is_stated else omitted
                    facts.append(fact)
        return stated, omitted

    def _write(self) -> str:
        """Return the text, and note where things and values stand in it."""
        text = ""
        kind = None  # of the fact before
        thing = None
        for fact in self.stated:
            if fact.kind is not kind:
                opening = self._form(fact.kind["opening"])
                if opening:
                    text += f"{opening} "

            # The second fact on a thing may leave out its name.
            follows = fact.thing == thing and self.rng.random() < 0.5
            forms = fact.relation["later"] if follows else fact.relation["says"]
            form = self._form(forms)
            slots = {"x": fact.thing, "v": fact.value}
            for slot in slots:
                before, mark, _ = form.partition("{" + slot + "}")
                if mark:
                    filled = before.format(**slots)
                    fact.places[slot] = len(text) + len(filled)

            sentence = form.format(**slots)
            first_letter = sentence[0].upper()
            text += f"{first_letter}{sentence[1:]}. "
            kind = fact.kind
            thing = fact.thing
        return text.rstrip()

    def _span(self, fact: Fact, slot: str) -> WrittenSpan:
        """Return the fact's thing ("x") or value ("v") as it is written in the paragraph."""
        word = fact.thing if slot == "x" else fact.value
        start = fact.places[slot]
        end = start + len(word)
        return {"text": self.context[start:end], "answer_start": start}

    def _shorter_and_longer(self, fact: Fact, slot: str, span: WrittenSpan) -> list[WrittenSpan]:
        """Return answers that a second annotator may choose: a last name, "river" and its name."""
        start = span["answer_start"]
        text = span["text"]
        first_name, _, last_name = text.partition(" ")
        if last_name:
            start += len(first_name) + 1
            return [{"text": last_name, "answer_start": start}]

        before = "river "
        is_river = slot == "v" and fact.relation["sort"] == "river"
        if is_river and self.context[:start].endswith(before):
            start -= len(before)
            return [{"text": f"{before}{text}", "answer_start": start}]
        return []

    def _answerable(self) -> tuple[str, dict]:
        """Ask for the value of a stated fact, or now and then for the thing that has the value."""
        fact = self.rng.choice(self.stated)
        # The value, or the thing if the paragraph names it.
        slot = "v"
        forms = fact.relation["asks"]
        if "x" in fact.places and self.rng.random() < 0.25:
            slot = "x"
            forms = fact.relation["back"]
        span = self._span(fact, slot)
        answers = [span]
        if self.split == "validation":
            answers += self._shorter_and_longer(fact, slot, span)
        form = self._form(forms)
        question = form.format(x=fact.thing, v=fact.value)
        return question, {"answers": answers, "is_impossible": False}

    def _impossible(self) -> tuple[str, dict]:
        """Ask for an omitted fact whose relation is stated of another thing, or about a new
        name.
        """
        rng = self.rng
        things = {fact.thing for fact in self.stated}
        shuffled = rng.sample(self.stated, k=len(self.stated))
        stated = {fact.relation["asks"]: fact for fact in shuffled}  # one of each relation
        missing = []
        for fact in self.omitted:
            if fact.relation["asks"] in stated and fact.thing in things:
                missing.append(fact)

        if missing and rng.random() < 0.75:
            fact = rng.choice(missing)
            asks = fact.relation["asks"]
            thing = fact.thing
        else:
            asks, fact = rng.choice(list(stated.items()))
            thing = self._draw(fact.kind["sort"])

        # Whoever overlooks that it is another thing's would give the value of the stated fact.
        plausible = [self._span(stated[asks], slot="v")]
        form = self._form(asks)
        question = form.format(x=thing)
        return question, {
            "answers": [],
            "plausible_answers": plausible,
            "is_impossible": True,
        }

    def ask(self) -> dict[str, dict]:
        """Return QUESTIONS different questions, each with what SQuAD has on it."""
        qas: dict[str, dict] = {}
        while len(qas) < QUESTIONS:
            # A question that was asked before is drawn again.
            if self.rng.random() < IMPOSSIBLE:
                question, answers = self._impossible()
            else:
                question, answers = self._answerable()
            qas.setdefault(question, answers)
        return qas


def generate(split: str, seed: int = 0, paragraphs: int | None = None) -> dict:
    """Generate a split of the world in the official SQuAD 2.0 JSON shape, deterministically.

    `split` is "train" or "validation"; `paragraphs` have QUESTIONS questions each, and their number
    is by default that of PARAGRAPHS.
    """
    if paragraphs is None:
        paragraphs = PARAGRAPHS[split]
    rng = Random(f"{split} {seed}")
    articles: list[dict[str, Any]] = []
    for number in range(paragraphs):
        paragraph = _Paragraph(rng, split=split)
        qas = []
        for place, (question, answers) in enumerate(paragraph.ask().items()):
            name = f"{split} {seed} {number} {place}"
            # Ids in the shape of SQuAD's: 24 hexadecimal digits.
            digest = hashlib.sha256(name.encode()).hexdigest()
            qas.append({"id": digest[:24], "question": question, **answers})

        # The next article begins after PARAGRAPHS_PER_ARTICLE.
        if number % PARAGRAPHS_PER_ARTICLE == 0:
            title = f"Chronicle_{len(articles) + 1}"
            articles.append({"title": title, "paragraphs": []})
        articles[-1]["paragraphs"].append({"context": paragraph.context, "qas": qas})
    return {"version": "v2.0", "data": articles}
