"""Questions of a file (rows.py), checked one at a time.

A fault of one question does not hide the next: one error names the first ten of a file, so that a
sheet is corrected once. The price is that the file is read to its end. A text that stands for "no
answer" in many rows is named with the key that says so.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from detalbert.errors import Cure, UserError
from detalbert.reading.forms import Content
from detalbert.reading.notes import Notes
from detalbert.reading.parquet import RawRow
from detalbert.reading.rows import RowPlace
from detalbert.squad.labels import Label, LabelError, is_empty, read_impossible, read_labels
from detalbert.squad.places import find_answer, is_word
from detalbert.squad.rows import MAX_CONTEXT, OURS_FIRST, Question, file_questions, is_alias
from detalbert.squad.windows import Example

MAX_QUESTION = 10_000  # characters
REPEATED = "answers stand more than once in their text (the first is taken)"  # a note, as below
INSIDE = "answers stand only inside a longer word"
MARKS = "answers have no letter or digit (data.no_answer: [...] if they mean that there is none)"
# A note on a text by which many tools and people mean that there is no answer.
A_MARK = "answers are %s (data.no_answer: [%s] if it means that there is none)"
_USUAL_MARKS = (
    "na",  # of R
    "n/a",
    "n.a.",
    "#n/a",  # of Excel
    "<na>",  # of pandas
    "nan",
    "null",  # of SQL
    "\\n",
    "nil",
    "none",
    "no answer",
    "no_answer",
    "unanswerable",
)
FOLDED = "answers stand in their text with other quotes, dashes, accents, spaces or end marks"
NOT_IN_CONTEXT = "answer not found"  # the kind of a fault
_OF_COLUMNS = ("bad answer", "misplaced answer")  # kinds of faults that a column's name may cause
_LISTED = 10  # faults of a file in its error
_SURROGATE = re.compile("[\ud800-\udfff]")
_OFTEN = 3  # rows with one text that stands nowhere: it is a mark, and no answer
_MARKS_COUNTED = 1000  # rows; a mark is among the first ones


class Fault(Exception):
    """A fault of one question.

    Args:
        kind: as a few words, for counts.
        problem: what is wrong, with the question's id.
        answer: text of an answer that is not in its context.
    """

    def __init__(self, kind: str, problem: str, answer: str | None = None) -> None:
        super().__init__(kind, problem)
        self.kind = kind
        self.problem = problem
        self.answer = answer


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
    cells: dict[str, RawRow] | None = None,
) -> Iterator[Example]:
    """Yield the questions of a file to answer; `answers` is None if the file has none.

    Args:
        contents: as for `file_questions`.
        columns, no_answer: as `data.columns` and `data.no_answer`.
        notes: gets what a user should know of them.
        left_out: gets the faulty ones; default: they are an error.
        cells: gets the row of each question of a table, by id, just before the question.

    Raises:
        UserError: something is not a question.
    """
    notes = Notes() if notes is None else notes
    questions = file_questions(contents, notes=notes, columns=columns, answers_needed=False)
    checked = checked_examples(
        questions,
        notes=notes,
        left_out=left_out,
        answers_needed=False,
        no_answer=no_answer,
        cells=cells,
    )
    first = next(checked, None)
    if first is None:
        raise UserError("no question in it", key=contents[0].file.address)
    yield first
    yield from checked


def checked_examples(
    questions: Iterable[Question],
    notes: Notes,
    left_out: list[LeftOut] | None = None,
    answers_needed: bool = True,
    no_answer: Sequence[str] = (),
    cells: dict[str, RawRow] | None = None,
) -> Iterator[Example]:
    """Check and yield every question, one at a time; only their ids stay in memory.

    Args:
        notes: gets what a user should know of the others.
        left_out: gets the faulty questions; None: they are an error.
        answers_needed: whether a question without answers is faulty; else its `answers` is None.
        no_answer: texts of answers that stand for none.
        cells: as for `file_examples`.

    Raises:
        UserError: for the first faulty questions, naming file, place and id.
    """
    ids: dict[str, bool] = {}  # whether it is one of the file
    faults = _Faults()
    for place, row, row_cells, has_id, plan in questions:
        if cells is not None and row_cells is not None:
            cells.setdefault(str(row["id"]), row_cells)  # of one id the first
        try:
            example = _checked(row, answers_needed, no_answer=no_answer, notes=notes)
            if not answers_needed:
                _check_sizes(example)
            # Answers are kept by id: of two questions with one, an answer would be lost.
            if example.id in ids:
                problem = f"question {example.id}: another one has this id"
                if not (has_id and ids[example.id]):
                    problem += ", which is the number of a row without one: give each row an id"
                raise Fault("duplicate id", problem)
        except Fault as fault:
            if fault.kind in _OF_COLUMNS:
                fault.problem += _aliases_line(plan)
            if left_out is None:
                faults.add(place, fault)
            else:
                name = str(row.get("id"))
                left_out.append(LeftOut(str(place), name, fault.kind, fault.problem))
            continue
        ids[example.id] = has_id
        if not faults.count:  # after a fault only the other faults count
            yield example
    faults.check()


def _aliases_line(plan: Mapping[str, str]) -> str:
    """Return which columns are read as places or flags under other names, and what to do if they
    are none; "" without any.
    """
    aliases = [
        f"column {plan[name]!r} is read as {name}: rename it if it is another"
        for name in OURS_FIRST
        if is_alias(plan.get(name, ""), name)
    ]
    return f" ({'; '.join(aliases)})" if aliases else ""


class _Faults:
    """The faulty questions of a file that must have none."""

    def __init__(self) -> None:
        self.first: RowPlace | None = None  # of the first one
        self.lines: list[str] = []  # of the first ones, without the first one's place
        self.count = 0
        self.may_be_skipped = True
        self.marks: Counter[str] = Counter()  # answers that are not in their contexts

    def add(self, place: RowPlace, fault: Fault) -> None:
        self.count += 1
        if self.first is None:
            self.first = place
            self.lines.append(fault.problem)
        elif len(self.lines) < _LISTED:
            # The error names the first one's file already.
            where = place.row if place.file == self.first.file else str(place)
            self.lines.append(f"{where}: {fault.problem}" if where else fault.problem)
        if fault.answer is not None and len(self.marks) < _MARKS_COUNTED:
            self.marks[fault.answer] += 1
        # Left out, all of them could be missing: a file without answers.
        if fault.kind == "no answer":
            self.may_be_skipped = False

    def check(self) -> None:
        """Raise UserError if there are faults."""
        if not self.count:
            return
        problem = "; ".join(self.lines)
        if self.count > len(self.lines):
            problem += f"; and {self.count - len(self.lines):,} more"
        cures = ["fix it" if self.count == 1 else "fix them"]
        # A text that is nowhere in many rows means "no answer" to who wrote the sheet.
        marks = {
            _quoted(mark): times
            for mark, times in self.marks.most_common(_LISTED)
            if times >= _OFTEN or _is_usual_mark(mark)
        }
        if marks:
            counts = " or ".join(f"{mark}, {times:,} times," for mark, times in marks.items())
            cures.append(
                f"if {counts} means that there is none: "
                f"data.no_answer: [{', '.join(marks)}], or an empty cell"
            )
        cure = " or ".join(cures)
        skip = Cure(f"{cure} or set data.skip_invalid: true", f"{cure} or take --skip-invalid")
        raise UserError(problem, key=str(self.first), cure=skip if self.may_be_skipped else cure)


def _is_usual_mark(text: str) -> bool:
    return text.strip().lower() in _USUAL_MARKS


def _quoted(text: str) -> str:
    """Return a text as YAML takes it, in single quotes."""
    return "'" + text.replace("'", "''") + "'"


def _checked(row: RawRow, answers_needed: bool, no_answer: Sequence[str], notes: Notes) -> Example:
    """Return the question of a row, with the spans of its answers. Raises Fault."""
    name, text, context = _checked_texts(row)
    try:
        impossible = read_impossible(row)
        labels = read_labels(row)
    except LabelError as error:
        raise Fault("bad answer", f"question {name}: {error}") from None
    if labels and no_answer:
        labels = [
            label for label in labels if label.text is None or label.text.strip() not in no_answer
        ]

    answers: tuple[tuple[str, int], ...] | None = None
    # The flag decides; without it, answers that are there and empty.
    if impossible or labels == [] and impossible is None:
        answers = ()
    elif labels:
        spans: list[tuple[str, int]] = []
        for label in labels:
            is_trained = not spans  # the first one is
            spans.append(_find_span(name, context, label, notes, is_trained=is_trained))
        answers = tuple(spans)
    elif answers_needed:
        raise Fault(
            "no answer",
            f"question {name}: no answers and not marked is_impossible; "
            "give it an `answer` (empty: there is none)",
        )

    title = row.get("title")
    return Example(
        id=name,
        title="" if is_empty(title) else str(title),
        context=context,
        question=text,
        answers=answers,
    )


def _checked_texts(row: RawRow) -> tuple[str, str, str]:
    """Return id, question and context of a row. Raises Fault if one is no text."""
    name = row.get("id")
    if type(name) is int:
        name = str(name)
    if not isinstance(name, str):
        raise Fault("no id", f"its id is {name!r:.40}; write a text or a whole number")
    if "question" not in row:
        raise Fault("no text", f"question {name}: it has no 'question'")
    question = _checked_text(name, "question", row["question"])
    context = _checked_text(name, "context", row.get("context"))
    if not is_unicode(f"{name}{question}{context}"):
        raise Fault("not UTF-8", f"question {name!r}: id, question or context is not UTF-8 text")
    return name, question, context


def _checked_text(name: str, key: str, text: object) -> str:
    """Return a question or context. Raises Fault if it is no text or empty."""
    if isinstance(text, str) and text and not text.isspace():
        return text
    if isinstance(text, (dict, list)):
        kind = type(text).__name__
        raise Fault(f"not a {key}", f"question {name}: its {key} is no text but {kind}")
    raise Fault(f"empty {key}", f"question {name}: its {key} is empty")


def _check_sizes(example: Example) -> None:
    """Raise Fault if a question or its context is longer than is answered."""
    problem = _too_long("question", example.question, limit=MAX_QUESTION)
    problem = problem or _too_long("context", example.context, limit=MAX_CONTEXT)
    if problem:
        raise Fault("too long", f"question {example.id}: {problem}")


def _too_long(name: str, text: str, limit: int) -> str:
    """Return what is wrong with a text of more than `limit` characters; "" of others."""
    if len(text) <= limit:
        return ""
    return f"the {name} has {len(text):,} characters, {limit:,} at most are read"


def _find_span(
    name: str, context: str, label: Label, notes: Notes, is_trained: bool
) -> tuple[str, int]:
    """Return a label's text as it stands in the context, and its start.

    Args:
        name: id of the question.
        context: its context.
        label: one of its answers.
        notes: gets what a user should know of the place.
        is_trained: whether it is the first label of its question, which is trained.

    Raises:
        Fault: it is not there.
    """
    if label.start is not None:
        return _labelled_span(name, context, label, start=label.start, notes=notes)
    text = label.text or ""
    # Without a start, the text is sought.
    place = find_answer(context, text) if text.strip() else None
    if place is None:
        problem = f"question {name}: answer {text!r:.80} is not in its context"
        raise Fault(NOT_IN_CONTEXT, problem, answer=text.strip())

    # It is found, but may not be what is meant.
    if _is_usual_mark(text):
        mark = _quoted(text.strip())
        notes.add(A_MARK % (mark, mark), f"question {name}")
    elif not re.search(r"\w", text):
        notes.add(MARKS, f"question {name}")
    if is_trained and place.times > 1:
        notes.add(REPEATED)
    if is_trained and not place.is_word:
        notes.add(INSIDE, f"question {name}")
    if is_trained and place.is_folded:
        notes.add(FOLDED, f"question {name}")
    return context[place.start : place.end], place.start


def _labelled_span(
    name: str, context: str, label: Label, start: int, notes: Notes
) -> tuple[str, int]:
    """Return the span of a label that has a start. Raises Fault if its text is not there."""
    text = label.text
    if text is None:
        text = context[start : label.end]
        if label.end is not None and label.end > len(context):
            problem = f"an answer ends at character {label.end}, its context at {len(context)}"
            raise Fault("misplaced answer", f"question {name}: {problem}")
    # The text must be there, character by character: windows are labelled by its place.
    span = context[start : start + len(text)] if start >= 0 else ""
    if span != text or not text.strip():
        problem = f"answer {text!r:.80} is not at character {start} (there: {span!r:.80})"
        raise Fault("misplaced answer", f"question {name}: {problem}")
    if label.text is None and not is_word(context, start, start + len(text)):
        notes.add(INSIDE, f"question {name}")
    return text, start


def check_text(where: str, question: str, context: str, max_context: int = MAX_CONTEXT) -> None:
    """Raise UserError if question or context is empty, too long or not Unicode text."""
    limits = {"question": (question, MAX_QUESTION), "context": (context, max_context)}
    for name, (text, limit) in limits.items():
        if not text.strip():
            raise UserError(f"the {name} is empty", key=where, cure="give it some text")
        problem = _too_long(name, text, limit)
        if problem:
            raise UserError(problem, key=where, cure="cut it")
        if not is_unicode(text):
            raise UserError(f"the {name} is not UTF-8 text", key=where, cure="fix it")


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON and broken encodings can contain."""
    return text.isascii() or not _SURROGATE.search(text)
