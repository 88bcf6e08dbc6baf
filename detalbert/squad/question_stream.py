"""Questions of a file (rows.py), checked one at a time.

A fault of one question does not hide the next: the first ten of a file are told together, so that a
sheet is corrected once. A text that stands for "no answer" in many rows is told with its key.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from detalbert.errors import UserError
from detalbert.reading.forms import Content
from detalbert.reading.notes import Notes
from detalbert.squad.labels import Label, LabelError, is_empty, read_flag, read_labels
from detalbert.squad.places import Place, find_answer
from detalbert.squad.rows import MAX_CONTEXT, Question, file_questions
from detalbert.squad.windows import Example

MAX_QUESTION = 10_000  # characters
REPEATED = "answers stand more than once in their text (the first is taken)"
INSIDE = "answers stand only inside a longer word"
MARKS = "answers have no letter or digit (data.no_answer: [...] if they mean that there is none)"
FOLDED = "answers stand in their text with other quotes, dashes, accents or spaces"
_TOLD = 10  # faults that are told
_OFTEN = 3  # rows with one text that stands nowhere: it is a mark, and no answer


class Fault(Exception):
    """A fault of one question: its kind, and what is wrong."""

    def __init__(self, kind: str, problem: str, answer: str | None = None) -> None:
        super().__init__(kind, problem)
        self.kind = kind
        self.problem = problem
        self.answer = answer  # one that is not in its context


class LeftOut(NamedTuple):
    """A question that is left out."""

    where: str
    name: str  # its id
    kind: str
    problem: str


def file_examples(
    contents: Sequence[Content],
    columns: Mapping[str, str] | None = None,
    no_answer: Sequence[str] = (),
    notes: Notes | None = None,
    left_out: list[LeftOut] | None = None,
) -> Iterator[Example]:
    """Yield the questions of a file to answer; `answers` is None if the file has none.

    Args:
        contents: as for `file_questions`.
        columns, no_answer: as `data.columns` and `data.no_answer`.
        notes: gets what a user should know of them.
        left_out: gets the faulty ones; default: they are an error.

    Raises:
        UserError: something is not a question.
    """
    notes = Notes() if notes is None else notes
    questions = file_questions(contents, notes, columns, answers_needed=False)
    checked = checked_examples(
        questions, notes, left_out, answers_needed=False, no_answer=no_answer
    )
    count = 0
    for example in checked:
        count += 1
        yield example
    if not count:
        raise UserError(f"{contents[0].file.address}: no question in it")


def checked_examples(
    questions: Iterable[Question],
    notes: Notes,
    left_out: list[LeftOut] | None = None,
    answers_needed: bool = True,
    no_answer: Sequence[str] = (),
) -> Iterator[Example]:
    """Check and yield every question, one at a time; only their ids stay in memory.

    Args:
        notes: gets what a user should know of the others.
        left_out: gets the faulty questions; None: they are an error.
        answers_needed: whether a question without answers is faulty; else its `answers` is None.
        no_answer: texts of answers that stand for none.

    Raises:
        UserError: for the first faulty questions, naming file, place and id.
    """
    seen: set[str] = set()
    faults = _Faults()
    for where, row in questions:
        try:
            example = _checked(row, answers_needed, no_answer, notes)
            if not answers_needed:
                _check_sizes(example)
            if example.id in seen:
                raise Fault("duplicate id", f"question {example.id}: another one has this id")
        except Fault as fault:
            if left_out is None:
                faults.add(where, fault)
            else:
                left_out.append(LeftOut(where, str(row.get("id")), fault.kind, fault.problem))
            continue
        seen.add(example.id)
        if not faults.lines:
            yield example
    faults.check()


class _Faults:
    """The faulty questions of a file that must have none."""

    def __init__(self) -> None:
        self.file = ""  # which the first line names
        self.lines: list[str] = []  # the first ones
        self.count = 0
        self.may_be_skipped = True
        self.marks: Counter[str] = Counter()  # answers that are not in their contexts

    def add(self, where: str, fault: Fault) -> None:
        self.count += 1
        if not self.lines:
            self.file = where.rpartition(": ")[0] or where
            self.lines.append(f"{where}: {fault.problem}")
        elif len(self.lines) < _TOLD:
            line = f"{where}: {fault.problem}"
            self.lines.append(line.removeprefix(f"{self.file}: "))
        if fault.answer is not None and len(self.marks) < 1000:
            self.marks[fault.answer] += 1
        # Left out, all of them could be missing: a file without answers.
        self.may_be_skipped &= fault.kind != "no answer"

    def check(self) -> None:
        """Raise UserError if there are faults."""
        if not self.count:
            return
        cures = ["fix it" if self.count == 1 else "fix them"]
        mark, times = (self.marks.most_common(1) or [("", 0)])[0]
        if times >= _OFTEN:
            is_none = f"if {mark!r}, {times:,} times, means that there is none: "
            cures.append(f"{is_none}data.no_answer: [{mark!r}], or an empty cell")
        if self.may_be_skipped:
            cures.append("set data.skip_invalid: true")
        problem = "; ".join(self.lines)
        if self.count > len(self.lines):
            problem += f"; and {self.count - len(self.lines):,} more"
        raise UserError(f"{problem}; {' or '.join(cures)}")


def _checked(
    row: Mapping[str, Any], answers_needed: bool, no_answer: Sequence[str], notes: Notes
) -> Example:
    name, text, context = _checked_texts(row)
    where = f"question {name}:"
    try:
        impossible = read_flag(row.get("is_impossible"))
        labels = read_labels(dict(row))
    except LabelError as error:
        raise Fault("bad answer", f"{where} {error}") from None
    labels = labels and [label for label in labels if not _is_mark(label, no_answer)]
    title = row.get("title")
    title = "" if is_empty(title) else str(title)
    if impossible:
        return Example(name, title, context, text, ())
    if not labels:
        is_none = labels is not None and impossible is None
        if is_none:
            return Example(name, title, context, text, ())
        if not answers_needed:
            return Example(name, title, context, text, None)
        cure = "give it an `answer` (empty: there is none)"
        raise Fault("no answer", f"{where} no answers and not marked is_impossible; {cure}")
    spans = [
        _find_span(where, context, label, notes, is_trained=number == 0)
        for number, label in enumerate(labels)
    ]
    return Example(name, title, context, text, tuple(spans))


def _checked_texts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return id, question and context of a row. Raises Fault if one is no text."""
    text = row.get("question")
    context = row.get("context")
    name = row.get("id")
    if type(name) is int:
        name = str(name)
    if not isinstance(name, str):
        raise Fault("no id", f"its id is {name!r:.40}; write a text or a whole number")
    where = f"question {name}:"
    if isinstance(text, (dict, list)):
        raise Fault("not a question", f"{where} it is no text but {type(text).__name__}")
    if not isinstance(text, str) or not text.strip():
        raise Fault("no text", f"{where} it has no text")
    if not isinstance(context, str) or not context.strip():
        raise Fault("empty context", f"{where} its context is empty")
    if not is_unicode(f"{name}{text}{context}"):
        raise Fault("not UTF-8", f"question {name!r}: id, question or context is not UTF-8 text")
    return name, text, context


def _check_sizes(example: Example) -> None:
    """Raise Fault if a question or its context is longer than is answered."""
    for part, text, limit in (
        ("question", example.question, MAX_QUESTION),
        ("context", example.context, MAX_CONTEXT),
    ):
        if len(text) > limit:
            size = f"{len(text):,} characters, {limit:,} at most are read"
            raise Fault("too long", f"question {example.id}: the {part} has {size}")


def _is_mark(label: Label, no_answer: Sequence[str]) -> bool:
    """Return whether a label stands for none."""
    return label.text is not None and label.text.strip() in no_answer


def _find_span(
    where: str, context: str, label: Label, notes: Notes, is_trained: bool
) -> tuple[str, int]:
    """Return a label's text as it stands in the context, and its start.

    Args:
        is_trained: whether it is the first label of its question, which is trained.

    Raises:
        Fault: it is not there.
    """
    text, start, end = label
    if start is not None:
        if text is None:
            text = context[start:end]
            if end is not None and end > len(context):
                problem = f"an answer ends at character {end}, its context at {len(context)}"
                raise Fault("misplaced answer", f"{where} {problem}")
        there = context[start : start + len(text)] if start >= 0 else ""
        if there != text or not text.strip():
            problem = f"answer {text!r:.80} is not at character {start} (there: {there!r:.80})"
            raise Fault("misplaced answer", f"{where} {problem}")
        return text, start
    text = text or ""
    place = find_answer(context, text) if text.strip() else None
    if place is None:
        problem = f"{where} answer {text!r:.80} is not in its context"
        raise Fault("answer not found", problem, text.strip())
    if not re.search(r"\w", text):
        notes.add(MARKS, where.removesuffix(":"))
    if is_trained:
        _note_place(place, notes, where.removesuffix(":"))
    return context[place.start : place.end], place.start


def _note_place(place: Place, notes: Notes, position: str) -> None:
    if place.times > 1:
        notes.add(REPEATED)
    if not place.is_word:
        notes.add(INSIDE, position)
    if place.is_folded:
        notes.add(FOLDED, position)


def check_text(where: str, question: str, context: str, max_context: int = MAX_CONTEXT) -> None:
    """Raise UserError if question or context is empty, too long or not Unicode text."""
    limits = {"question": (question, MAX_QUESTION), "context": (context, max_context)}
    for name, (text, limit) in limits.items():
        if not text.strip():
            raise UserError(f"{where}: the {name} is empty; give it some text")
        if len(text) > limit:
            size = f"{len(text):,} characters, {limit:,} at most are read"
            raise UserError(f"{where}: the {name} has {size}; cut it")
        if not is_unicode(text):
            raise UserError(f"{where}: the {name} is not UTF-8 text; fix it")


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON and broken encodings can contain."""
    return not re.search("[\ud800-\udfff]", text)
