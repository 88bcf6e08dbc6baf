"""A generated world in the shape of SQuAD 2.0: paragraphs of facts, and questions on them.

Every paragraph states a few facts about several towns, ships, lutes or scholars. A question asks
for one fact in another wording. An unanswerable question asks for a fact that the paragraph states
only of another thing, or about a name that is not in the paragraph. A name belongs to one split
only, so a model trained on "train" is tested on unseen names. world.yaml holds the words.
"""

import hashlib
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

import yaml

PARAGRAPHS = {"train": 1400, "validation": 100}
PARAGRAPHS_PER_ARTICLE = 10
QUESTIONS = 6
IMPOSSIBLE = 0.36


class Relation(NamedTuple):
    """One relation of a thing to a value; each text holds forms, of which `_form` draws one."""

    sort: str  # of the value: "person", "place", "river", "year" or a key of WORDS
    says: str
    later: str  # statements that follow one on the thing
    asks: str
    back: str  # questions for the thing


class Topic(NamedTuple):
    """One kind of thing: the sort of its names, openings of a paragraph on it, its relations."""

    sort: str
    opening: str
    relations: tuple[Relation, ...]


_FOUND: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("world.yaml").read_text())
WORDS, SYLLABLES = (
    {name: words.split() for name, words in _FOUND[key].items()} for key in ("words", "syllables")
)
KINDS = tuple(
    Topic(kind["sort"], kind["opening"], tuple(Relation(**r) for r in kind["relations"]))
    for kind in _FOUND["kinds"]
)


class Fact(NamedTuple):
    """One fact of the world, stated in its paragraph or omitted."""

    kind: Topic
    relation: Relation
    thing: str
    value: str


class Page(NamedTuple):
    """A written paragraph, its facts, and the words that it uses."""

    split: str
    told: list[Fact]
    untold: list[Fact]
    used: set[str]
    context: str
    places: dict[tuple[Fact, str], int]  # (fact, "x" or "v") -> character where it starts


def _form(rng: Random, forms: str) -> str:
    return rng.choice(forms.split(" | "))


def _word(rng: Random, split: str, ends: str = "ends") -> str:
    """Compose a word of SYLLABLES that belongs to `split`, by the word's checksum."""
    draw = rng.choice
    while True:
        middle = draw(SYLLABLES["middles"]) if rng.random() < 0.4 else ""
        word = (draw(SYLLABLES["beginnings"]) + middle + draw(SYLLABLES[ends])).capitalize()
        if (crc32(word.encode()) % 4 == 0) == (split == "validation"):
            return word


def _draw(rng: Random, split: str, sort: str, used: set[str]) -> str:
    """Draw a value of this sort from words that are not in `used`, and add them to it."""
    while True:
        if sort in WORDS:
            words = [rng.choice(WORDS[sort])]
        elif sort == "year":
            words = [str(rng.randrange(1100, 1900))]
        elif sort == "person":
            words = [_word(rng, split), _word(rng, split)]
        else:
            words = [_word(rng, split, "town_ends" if sort in ("town", "place") else "ends")]
        if not used.intersection(words):
            used.update(words)
            return " ".join(words)


def _facts(rng: Random, split: str, used: set[str]) -> tuple[list[Fact], list[Fact]]:
    """Draw the facts that the paragraph states, thing by thing, and those that it omits."""
    told, untold = list[Fact](), list[Fact]()
    for kind, count in zip(rng.sample(KINDS, 2), rng.choice(((4, 0), (5, 0), (3, 2))), strict=True):
        relations = rng.sample(kind.relations, 2)
        for thing in [_draw(rng, split, kind.sort, used) for _ in range(count)]:
            for relation in rng.sample(relations, len(relations)):
                fact = Fact(kind, relation, thing, _draw(rng, split, relation.sort, used))
                (told if rng.random() < 0.75 else untold).append(fact)
    return told, untold


def _write(rng: Random, told: list[Fact]) -> tuple[str, dict[tuple[Fact, str], int]]:
    """Write the paragraph; return its text and `Page.places`."""
    text, places, previous = "", {}, None
    for fact in told:
        if previous is None or fact.kind is not previous.kind:
            opening = _form(rng, fact.kind.opening)
            text += opening + " " if opening else ""
        follows = previous is not None and fact.thing == previous.thing and rng.random() < 0.5
        form = _form(rng, fact.relation.later if follows else fact.relation.says)
        slots = {"x": fact.thing, "v": fact.value}
        for slot in slots:
            before, found, _ = form.partition("{" + slot + "}")
            if found:
                places[fact, slot] = len(text) + len(before.format(**slots))
        sentence = form.format(**slots)
        text += sentence[0].upper() + sentence[1:] + ". "
        previous = fact
    return text.rstrip(), places


def _span(page: Page, fact: Fact, slot: str) -> dict:
    """Return the fact's thing ("x") or value ("v") as it is written in the paragraph."""
    start, length = page.places[fact, slot], len(fact.thing if slot == "x" else fact.value)
    return {"text": page.context[start : start + length], "answer_start": start}


def _shorter_and_longer(page: Page, fact: Fact, slot: str) -> list[dict]:
    """Return answers that a second annotator may choose: a last name, "river" and its name."""
    span = _span(page, fact, slot)
    start, text = span["answer_start"], span["text"]
    first, _, last = text.partition(" ")
    if last:
        return [{"text": last, "answer_start": start + len(first) + 1}]
    if slot == "v" and fact.relation.sort == "river" and page.context[:start].endswith("river "):
        return [{"text": "river " + text, "answer_start": start - len("river ")}]
    return []


def _answerable(rng: Random, page: Page) -> tuple[str, dict]:
    """Ask for the value of a told fact, or now and then for the thing that has the value."""
    fact = rng.choice(page.told)
    slot = "x" if (fact, "x") in page.places and rng.random() < 0.25 else "v"
    forms = fact.relation.back if slot == "x" else fact.relation.asks
    answers = [_span(page, fact, slot)]
    if page.split == "validation":
        answers += _shorter_and_longer(page, fact, slot)
    question = _form(rng, forms).format(x=fact.thing, v=fact.value)
    return question, {"answers": answers, "is_impossible": False}


def _impossible(rng: Random, page: Page) -> tuple[str, dict]:
    """Ask for an untold fact whose relation is told of another thing, or about a new name."""
    like = {fact.relation: fact for fact in rng.sample(page.told, len(page.told))}
    things = {fact.thing for fact in page.told}
    missing = [fact for fact in page.untold if fact.relation in like and fact.thing in things]
    if missing and rng.random() < 0.75:
        fact = rng.choice(missing)
        relation, thing = fact.relation, fact.thing
    else:
        relation, fact = rng.choice(list(like.items()))
        thing = _draw(rng, page.split, fact.kind.sort, page.used)
    plausible = [_span(page, like[relation], "v")]
    question = _form(rng, relation.asks).format(x=thing)
    return question, {"answers": [], "plausible_answers": plausible, "is_impossible": True}


def _paragraph(rng: Random, split: str) -> dict:
    """Make one paragraph with its questions, none asked twice."""
    used: set[str] = set()
    told: list[Fact] = []
    while len(told) < 5:
        told, untold = _facts(rng, split, used)
    page = Page(split, told, untold, used, *_write(rng, told))
    qas: dict[str, dict] = {}
    while len(qas) < QUESTIONS:
        ask = _impossible if rng.random() < IMPOSSIBLE else _answerable
        question, rest = ask(rng, page)
        qas.setdefault(question, rest)
    return {"context": page.context, "qas": [{"question": q, **rest} for q, rest in qas.items()]}


def generate(split: str, seed: int = 0, paragraphs: int | None = None) -> dict:
    """Generate a split of the world in the official SQuAD 2.0 JSON shape, deterministically.

    `split` is "train" or "validation"; `paragraphs` have QUESTIONS questions each, and their number
    is by default that of PARAGRAPHS.
    """
    rng = Random(f"{split} {seed}")
    count = PARAGRAPHS[split] if paragraphs is None else paragraphs
    made = [_paragraph(rng, split) for _ in range(count)]
    for p, paragraph in enumerate(made):
        for q, qa in enumerate(paragraph["qas"]):
            digest = hashlib.sha256(f"{split} {seed} {p} {q}".encode()).hexdigest()
            paragraph["qas"][q] = {"id": digest[:24], **qa}
    articles = [
        {
            "title": f"Chronicle_{at // PARAGRAPHS_PER_ARTICLE + 1}",
            "paragraphs": made[at : at + PARAGRAPHS_PER_ARTICLE],
        }
        for at in range(0, count, PARAGRAPHS_PER_ARTICLE)
    ]
    return {"version": "v2.0", "data": articles}
