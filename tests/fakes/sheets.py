"""Sheets of questions as a business has them, made up: a row is a question, a text, its answer.

A text of 60 to 110 words describes one thing of a domain in plain English: a few facts in any
order, most with others of the same kind beside them (three prices, three dates, two people), a
value of another thing, and sentences that state nothing. A third of the questions ask for a fact
that the text leaves out. The things and people of `fresh` sheets are in no other sheet.

python -m tests.fakes.sheets shop questions.csv [--seed 1] [--count 300] [--fresh]
"""

import argparse
import csv
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import yaml

WORDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("sheets.yaml").read_text())
DOMAINS: dict[str, dict[str, Any]] = WORDS["domains"]
COLUMNS = ["question", "context", "answer"]
QUESTIONS = 3  # of a text
ANSWERED = 2 / 3
MONTHS = "January February March April May June July August September October November December"
NUMBERS = "two three four five six seven eight nine ten eleven twelve".split()
Row = dict[str, str]


def sheet(domain: str, seed: int, count: int = 300, fresh: bool = False) -> list[Row]:
    """Return `count` rows of COLUMNS."""
    writer = _Writer(Random(f"{domain} {seed} {fresh}"), fresh)
    rows: list[Row] = []
    while len(rows) < count:
        rows += writer.text_rows(DOMAINS[domain])
    return rows[:count]


class _Writer:
    """Writes texts and questions, drawn by `rng`."""

    def __init__(self, rng: Random, fresh: bool) -> None:
        self.rng = rng
        self.fresh = fresh

    def text_rows(self, domain: dict[str, Any]) -> list[Row]:
        """Return the rows of one text."""
        rng = self.rng
        thing = self._name(domain["first"], domain["second"])
        relations = rng.sample(domain["relations"], k=len(domain["relations"]))
        stated = relations[: rng.choice((6, 7, 8))]
        omitted = relations[len(stated) :]

        # No value holds another one: an answer stands once in its text.
        values: list[str] = []
        other_value = self._new_value(domain["other_sort"], values)
        sentences = []
        for relation in stated:
            value = self._new_value(relation["sort"], values)
            sentences.append(rng.choice(relation["says"]).format(x=thing, v=value))
        answers = dict(zip(map(id, stated), values[1:], strict=True))

        other = self._name(domain["first"], domain["second"])
        sentences.append(rng.choice(domain["other"]).format(y=other, v=other_value))
        sentences += rng.sample(domain["fillers"], k=2)
        rng.shuffle(sentences)
        context = " ".join([rng.choice(domain["intro"]).format(x=thing), *sentences])

        # Different questions.
        rows = []
        for _ in range(QUESTIONS):
            relations = stated if rng.random() < ANSWERED or not omitted else omitted
            relation = relations.pop(rng.randrange(len(relations)))
            question = rng.choice(relation["asks"]).format(x=thing)
            answer = answers.get(id(relation), "")
            rows.append({"question": question, "context": context, "answer": answer})
        return rows

    def _new_value(self, sort: str, others: list[str]) -> str:
        """Return a value that is not a part of any other one, nor they of it; add it to them."""
        while True:
            value = self._value(sort)
            if not any(value in other or other in value for other in others):
                others.append(value)
                return value

    def _value(self, sort: str) -> str:
        """Return a value of a sort, as a person might write it."""
        rng = self.rng
        match sort:
            case "money":
                amount = rng.randrange(20, 3000)
                return rng.choice((f"{amount} euros", f"{amount:,} euros", f"${amount:,}"))
            case "period":
                number = rng.randrange(len(NUMBERS))
                count = rng.choice((NUMBERS[number], str(number + 2)))
                return f"{count} {rng.choice(('days', 'weeks', 'months', 'years'))}"
            case "centimetres":
                return f"{rng.randrange(15, 250)} {rng.choice(('cm', 'centimetres'))}"
            case "date":
                month = rng.choice(MONTHS.split())
                return f"{rng.randrange(1, 29)} {month} {rng.randrange(2005, 2026)}"
            case "year":
                return str(rng.randrange(1450, 1930))
            case "person":
                return self._name(WORDS["values"]["given"], WORDS["values"]["family"])
        return rng.choice(WORDS["values"][sort].split(", "))

    def _name(self, first: str, second: str) -> str:
        """Return a name of two words that belongs to fresh sheets, or to the others."""
        while True:
            name = f"{self.rng.choice(first.split(', '))} {self.rng.choice(second.split(', '))}"
            if (crc32(name.encode()) % 3 == 0) == self.fresh:
                return name


def write_sheet(path: Path, rows: list[Row]) -> None:
    """Write rows as a CSV file."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("domain", choices=DOMAINS)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--fresh", action="store_true")
    args = parser.parse_args()
    write_sheet(args.file, sheet(args.domain, args.seed, args.count, fresh=args.fresh))
