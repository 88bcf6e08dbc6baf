"""A generated world in the shape of SQuAD 2.0: paragraphs of facts, and questions on them.

Every paragraph says a few things about several towns, ships, lutes, scholars or books. A question
asks for one fact in another wording. Those that cannot be answered ask for a fact that was left out
although its like is told of a neighbour, or ask about a name that the paragraph does not hold. A
name belongs to one split only, so what is learned on "train" is tested on names never seen.
"""

import hashlib
from dataclasses import dataclass
from random import Random
from zlib import crc32

from embedded.relations import KINDS, Kind, Relation

PARAGRAPHS = {"train": 1600, "validation": 100}
PARAGRAPHS_PER_ARTICLE = 10
QUESTIONS = 6
IMPOSSIBLE = 0.36
STARTS = """al an ar bel ber bor bran cal car cor dan del dor el en fal fen gar gil gor hal har hel
il jor kal kar kel lan lor mal mar mel mir mor nal nor ol or pel per ral ran ros sal sel sor tal
tan tar tor ul val ver vor wal wen yor zan zel""".split()
MIDDLES = "a e i o u an en in on ar er or al el il".split()
ENDS = """bo da den dra fin ga go la len li lo ma min mo na nis no ra ren ri ro sa sel ta ten ti to
va vin za""".split()
TOWN_ENDS = "bury by dale ford ham holm mere port stead ton wick worth".split()


@dataclass(frozen=True)
class Fact:
    """One thing that the world holds true, told in its paragraph or left out of it."""

    kind: Kind
    relation: Relation
    thing: str
    value: str


def _word(rng: Random, split: str, ends: list[str]) -> str:
    """Compose a word of syllables; its checksum decides to which split it belongs."""
    while True:
        middle = rng.choice(MIDDLES) if rng.random() < 0.4 else ""
        word = (rng.choice(STARTS) + middle + rng.choice(ends)).capitalize()
        if (crc32(word.encode()) % 4 == 0) == (split == "validation"):
            return word


def _draw(rng: Random, split: str, sort: str | tuple[str, ...], used: set[str]) -> str:
    """Draw a value of this sort that the paragraph does not hold yet, and note it as used."""
    while True:
        if isinstance(sort, tuple):
            words = [rng.choice(sort)]
        elif sort == "year":
            words = [str(rng.randrange(1100, 1900))]
        elif sort == "person":
            words = [_word(rng, split, ENDS), _word(rng, split, ENDS)]
        else:
            words = [_word(rng, split, TOWN_ENDS if sort in ("town", "place") else ENDS)]
        if not used.intersection(words):
            used.update(words)
            return " ".join(words)


def _facts(rng: Random, split: str, used: set[str]) -> tuple[list[Fact], list[Fact]]:
    """Draw what is true: the facts to tell, thing by thing, and those to leave out."""
    told, untold = [], []
    for kind, count in zip(rng.sample(KINDS, 2), rng.choice(((4, 0), (5, 0), (3, 3))), strict=True):
        relations = rng.sample(kind.relations, 2)
        for thing in [_draw(rng, split, kind.sort, used) for _ in range(count)]:
            for relation in rng.sample(relations, len(relations)):
                fact = Fact(kind, relation, thing, _draw(rng, split, relation.sort, used))
                (told if rng.random() < 0.75 else untold).append(fact)
    return told, untold


def _write(rng: Random, told: list[Fact]) -> tuple[str, dict[tuple[Fact, str], int]]:
    """Write the paragraph; gives it and where each fact's thing and value stand in it."""
    text, places, previous = "", {}, None
    for fact in told:
        if previous is None or fact.kind is not previous.kind:
            opening = rng.choice(fact.kind.opening)
            text += opening + " " if opening else ""
        follows = previous is not None and fact.thing == previous.thing and rng.random() < 0.6
        form = rng.choice(fact.relation.later if follows else fact.relation.says)
        slots = {"x": fact.thing, "v": fact.value}
        for slot in slots:
            before, found, _ = form.partition("{" + slot + "}")
            if found:
                places[fact, slot] = len(text) + len(before.format(**slots))
        sentence = form.format(**slots)
        text += sentence[0].upper() + sentence[1:] + ". "
        previous = fact
    return text.rstrip(), places


def _answerable(
    rng: Random, split: str, context: str, told: list[Fact], places: dict[tuple[Fact, str], int]
) -> tuple[str, dict]:
    """Ask for the value of a told fact, or now and then for the thing that has the value."""
    fact = rng.choice(told)
    slot = "x" if (fact, "x") in places and rng.random() < 0.25 else "v"
    forms = fact.relation.back if slot == "x" else fact.relation.asks
    start, length = places[fact, slot], len(fact.thing if slot == "x" else fact.value)
    text = context[start : start + length]
    answers = [{"text": text, "answer_start": start}]
    first, _, last = text.partition(" ")
    if split == "validation" and last:
        answers.append({"text": last, "answer_start": start + len(first) + 1})
    if split == "validation" and fact.relation.sort == "river" and slot == "v":
        wide = context.rfind("river ", 0, start)
        if wide + len("river ") == start:
            answers.append({"text": context[wide : start + length], "answer_start": wide})
    question = rng.choice(forms).format(x=fact.thing, v=fact.value)
    return question, {"answers": answers, "is_impossible": False}


def _impossible(
    rng: Random,
    split: str,
    told: list[Fact],
    untold: list[Fact],
    used: set[str],
    places: dict[tuple[Fact, str], int],
) -> tuple[str, dict]:
    """Ask for a fact left out whose like is told of a neighbour, or about an absent name."""
    like = {fact.relation: fact for fact in rng.sample(told, len(told))}
    things = {fact.thing for fact in told}
    missing = [fact for fact in untold if fact.relation in like and fact.thing in things]
    if missing and rng.random() < 0.75:
        fact = rng.choice(missing)
        relation, thing = fact.relation, fact.thing
    else:
        relation, fact = rng.choice(list(like.items()))
        thing = _draw(rng, split, fact.kind.sort, used)
    near = like[relation]
    plausible = [{"text": near.value, "answer_start": places[near, "v"]}]
    question = rng.choice(relation.asks).format(x=thing)
    return question, {"answers": [], "plausible_answers": plausible, "is_impossible": True}


def _paragraph(rng: Random, split: str) -> dict:
    """Make one paragraph with its questions, none asked twice."""
    used: set[str] = set()
    told: list[Fact] = []
    while len(told) < 5:
        told, untold = _facts(rng, split, used)
    context, places = _write(rng, told)
    qas: dict[str, dict] = {}
    while len(qas) < QUESTIONS:
        if rng.random() < IMPOSSIBLE:
            question, rest = _impossible(rng, split, told, untold, used, places)
        else:
            question, rest = _answerable(rng, split, context, told, places)
        qas.setdefault(question, rest)
    return {"context": context, "qas": [{"question": q, **rest} for q, rest in qas.items()]}


def generate(split: str, seed: int = 0, paragraphs: int | None = None) -> dict:
    """Make a split of the world in the official SQuAD 2.0 JSON shape.

    `split` is "train" or "validation" (else ValueError); `paragraphs` of QUESTIONS questions each,
    by default as PARAGRAPHS says. The same arguments always give the same data.
    """
    if split not in PARAGRAPHS:
        raise ValueError(f"split must be one of {sorted(PARAGRAPHS)}, not {split!r}")
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
