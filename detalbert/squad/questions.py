"""Questions of a source (sources.py), checked one at a time.

A row is a mapping with `question` and `context` and, if there are such, `id`, `title` and answers
(columns.py), or an article or a paragraph of SQuAD's shape. A fault of one question does not hide
the next: one error names the first ten, so that a sheet is corrected once.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from detalbert.errors import UserError
from detalbert.reading.records import Row
from detalbert.squad.columns import (
    BAD_LABEL,
    Columns,
    Fault,
    Label,
    is_empty,
    read_flag,
    read_labels,
)
from detalbert.squad.example import Example
from detalbert.squad.places import find_place
from detalbert.squad.sources import Reading, Source

# What a user should know of questions that are read all the same.
REPEATED = "answers stand more than once in their text (the first is taken)"
INSIDE = "answers stand only inside a longer word"
NOT_IN_CONTEXT = "answer not found"  # kind of a fault
_LISTED = 10  # faults in an error
# What people write where there is no answer: it may stand in a context by chance.
_MARK = re.compile(r"\W*|n\W?a\W?|nan|null|nil|none|no[ _]answer|unanswerable", re.IGNORECASE)


class Question(NamedTuple):
    """A question as it stands in its source."""

    number: int  # from 1
    place: str
    row: Row  # by the source's own names


class LeftOut(NamedTuple):
    """A question that is left out."""

    where: str
    name: str  # its id
    kind: str
    problem: str


def read_examples(
    source: Source,
    answers_needed: bool = True,
    left_out: list[LeftOut] | None = None,
    counts: Counter[str] | None = None,
    cells: dict[str, Row] | None = None,
) -> Iterator[Example]:
    """Yield the questions of a source in order; only their ids stay in memory.

    Args:
        answers_needed: whether a question without answers is faulty; else its `answers` is None.
        left_out: gets the faulty questions; default: they are an error.
        counts: gets how many answers stand in a place that a user should know of.
        cells: gets the row of each question of a table, by id, just before the question.

    Raises:
        UserError: a file is not as its ending says or lacks a column, the first faulty questions
            if they are not left out, or there is no question.
        Unavailable: a server fails.
    """
    counts = Counter() if counts is None else counts
    columns = Columns(source.reading, answers_needed)
    faults: list[LeftOut] = [] if left_out is None else left_out
    ids: set[str] = set()
    for question in _questions(source, columns):
        row = columns.rename(question.row, question.place)
        name = str(question.number if is_empty(row.get("id")) else row["id"])
        if cells is not None and source.is_table:
            cells.setdefault(name, question.row)  # of one id the first
        try:
            example = _read_example(name, row, source.reading, answers_needed, counts)
            # Answers are kept by id: of two questions with one, an answer would be lost.
            if name in ids:
                raise Fault("duplicate id", "another question has this id, or is of this number")
        except Fault as fault:
            kind, problem = fault.args
            faults.append(LeftOut(question.place, name, kind, f"question {name}: {problem}"))
            if left_out is None and len(faults) == _LISTED:
                break
            continue
        ids.add(name)
        if left_out is not None or not faults:  # after an error only the other ones count
            yield example
    if left_out is None and faults:
        raise _as_error(faults)
    columns.check_all(source.name)
    if not ids:
        raise UserError(
            "no usable question",
            key=source.name,
            cure=f"set data.{source.split}",
        )


def _as_error(faults: list[LeftOut]) -> UserError:
    """Return the error of faulty questions, by their places in the file of the first."""
    file = faults[0].where.rpartition(": ")[0]
    lines = [f"{fault.where}: {fault.problem}".removeprefix(f"{file}: ") for fault in faults]
    return UserError("; ".join(lines), key=file, cure="fix it, or set data.skip_invalid: true")


def _questions(source: Source, columns: Columns) -> Iterable[Question]:
    """Return the raw questions of a split; with a fraction, the validation set has this share of
    the contexts, those with the lowest hashes, with all of their questions.

    Raises:
        UserError: there is a single context.
    """
    fraction = source.reading.fraction
    if fraction is None:
        return _flatten(source, columns)

    # All of a context's questions go to one set: it would not be unseen in the other.
    questions = list(_flatten(source, columns))
    contexts = [str(columns.rename(row, place)["context"]) for _, place, row in questions]
    by_hash = sorted(set(contexts), key=_sha256)
    if len(by_hash) == 1:
        raise UserError(
            f"{source.name} has one context, and each set needs one",
            key="data.validation_fraction",
            cure="name a file in data.validation",
        )
    # Each set has at least one.
    count = max(1, round(fraction * len(by_hash)))
    held_out = set(by_hash[: min(count, len(by_hash) - 1)])
    is_validation = source.split == "validation"
    return [
        question
        for question, context in zip(questions, contexts, strict=True)
        if (context in held_out) == is_validation
    ]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _flatten(source: Source, columns: Columns) -> Iterator[Question]:
    """Yield the raw questions; those of SQuAD's shape with the context of their paragraph."""
    number = 0
    own = source.reading.columns.get("context", "context")
    for place, row in source.rows():
        if "paragraphs" not in row and "qas" not in row:
            number += 1
            yield Question(number, place, row)
            continue
        try:
            for paragraph in row.get("paragraphs", [row]):
                context = {"title": row.get("title"), own: paragraph[own]}
                for question in paragraph["qas"]:
                    number += 1
                    yield Question(number, place, {**context, **question})
        except (LookupError, TypeError) as error:
            raise UserError(
                f"not of SQuAD's shape, paragraphs > {own}, qas ({error!r:.60})",
                key=place,
                cure="correct it, or name its context in data.columns",
            ) from None


def _read_example(
    name: str, row: Row, reading: Reading, answers_needed: bool, counts: Counter[str]
) -> Example:
    """Return the question of a row under our names, with its answers. Raises Fault."""
    for key in ("question", "context"):
        text = row[key]
        if not isinstance(text, str):
            raise Fault(f"no {key}", f"its {key} is no text but {text!r:.40}")
        if is_empty(text):
            raise Fault(f"empty {key}", f"its {key} is empty")
    title = "" if is_empty(row.get("title")) else str(row["title"])
    example = Example(name, title, row["context"], row["question"], answers=None)
    if not is_unicode(f"{name}{title}{example.context}{example.question}"):
        raise Fault("not Unicode", "half a character (a lone surrogate) is in it")

    # The flag decides; without it, answers that are there and empty.
    impossible = read_flag(row.get("is_impossible"))
    labels = read_labels(row)
    if labels is None and "" in reading.no_answer:
        labels = []
    if labels:
        labels = [label for label in labels if label.text.strip() not in reading.no_answer]
    if impossible and labels:
        raise Fault(BAD_LABEL, f"is_impossible, and it has the answer {labels[0].text!r:.80}")
    if impossible or (labels == [] and impossible is None):
        return example._replace(answers=())
    if labels:
        return example._replace(answers=_find_places(example.context, labels, counts))
    if answers_needed:
        raise Fault(
            "no answer",
            'it has no answer; if that means that there is none, data.no_answer: [""] says so',
        )
    return example


def _stands_at(context: str, text: str, start: int) -> tuple[str, int] | None:
    """Return an answer and its first character if it stands there, else None. White space around
    it may be another than in the context.
    """
    if start < 0:
        return None
    if context.startswith(text, start):
        return text, start
    stripped = text.strip()
    first = start + text.index(stripped)
    return (stripped, first) if context.startswith(stripped, first) else None


def _find_places(
    context: str, labels: list[Label], counts: Counter[str]
) -> tuple[tuple[str, int], ...]:
    """Return the texts of labels as they stand in the context, and their first characters. Raises
    Fault if one is not there.
    """
    answers = []
    for text, start in labels:
        if start is not None:
            answer = _stands_at(context, text, start)
            if answer is None:
                span = context[max(start, 0) :][: len(text)]
                raise Fault(
                    "misplaced answer",
                    f"answer {text!r:.80} is not at character {start} (there: {span!r:.80})",
                )
            answers.append(answer)
            continue
        mark = text.strip()
        if len(labels) == 1 and _MARK.fullmatch(mark):
            raise Fault(
                NOT_IN_CONTEXT,
                f"answer {mark!r} may mean that there is none: data.no_answer: [{mark!r}] says so, "
                "and answer_start that it is one",
            )
        place = find_place(context, text)
        if place is None:
            raise Fault(NOT_IN_CONTEXT, f"answer {text!r:.80} is not in its context")
        if not answers:  # the first one is trained
            counts[REPEATED] += place.times > 1
            counts[INSIDE] += not place.is_word
        span = context[place.start : place.end]
        answers.append((span, place.start))
    return tuple(answers)


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON and broken encodings can contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
