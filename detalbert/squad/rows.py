"""Raw questions of the rows of a file: under our names of columns, with an id, not checked yet.

A row is a mapping with `question` and `context` and, if there are such, `id`, `title` and answers
(labels.py), or an article of SQuAD's shape with many questions.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from detalbert.errors import Cure, UserError
from detalbert.reading.forms import Content
from detalbert.reading.json_values import LABEL
from detalbert.reading.notes import Notes
from detalbert.reading.parquet import RawRow
from detalbert.reading.rows import RowPlace, Rows, rows_of_file
from detalbert.settings import forms
from detalbert.settings.hparams import COLUMNS
from detalbert.squad.labels import ANSWERABLE, OF_STARTS, OF_TEXTS, is_empty, letters_of

MAX_CONTEXT = 1_000_000  # characters: about 250,000 tokens
# Patterns of names that public files use, for columns that a file has not under ours; without
# signs, spaces and capitals.
ALIASES = {
    "answer": OF_TEXTS,
    "id": re.compile("guid|qid"),
    "answer_start": OF_STARTS,
    "is_impossible": re.compile("(is)?(impossible|unanswerable)|noanswer"),
    ANSWERABLE: re.compile("isanswerable|hasanswer"),
}
# Ours count before aliases, as an alias may hold anything then.
OURS_FIRST = ("answer_start", "is_impossible", ANSWERABLE)
_TASK = "_task_hash"  # a key of Prodigy's rows, whose `answer` is the annotator's verdict
_PLANS = 1_000  # kinds of rows, by their names, whose columns are known
_OF_ANSWERS = ("answer", "answers", "answer_start", "is_impossible")


class Question(NamedTuple):
    """A question as it stands in its file."""

    place: RowPlace
    row: RawRow  # values by names of COLUMNS, and ANSWERABLE; with an id
    cells: RawRow | None = None  # of a table: all values, by its own names
    has_id: bool = True  # else its id is its number
    plan: Mapping[str, str] = MappingProxyType({})  # the file's own names, by those of `row`


def file_questions(
    contents: Sequence[Content],
    notes: Notes,
    columns: Mapping[str, str] | None = None,
    answers_needed: bool = True,
) -> Iterator[Question]:
    """Yield the questions of a file. One without an id gets its number in the file, from 1.

    Args:
        contents: the file, or the shards of a split in order, which count as one.
        notes: gets what a user should know of the file.
        columns: the file's own names, by names of COLUMNS, as `data.columns`.
        answers_needed: whether a file may lack the columns of answers that `columns` names.

    Raises:
        UserError: the file has other content, or lacks a column.
    """
    number = 0
    for content in contents:
        names = ColumnNames(
            columns or {},
            where=content.file.address,
            notes=notes,
            answers_needed=answers_needed,
        )
        rows = rows_of_file(
            content,
            notes=notes,
            needed=names.of_table(),
            longest=MAX_CONTEXT + 1,
        )
        for question in _questions(rows, names, form=content.form):
            number += 1
            yield _with_id(question, number)


def row_questions(
    where: str,
    rows: Iterable[object],
    notes: Notes,
    columns: Mapping[str, str] | None = None,
) -> Iterator[Question]:
    """Yield the questions of rows of a hub data set or of articles, as `file_questions` does."""
    names = ColumnNames(columns or {}, where=where, notes=notes, answers_needed=True)
    # JSON's rules for columns: a data set's rows may lack some.
    placed = ((RowPlace(where, f"row {number}"), row) for number, row in enumerate(rows, start=1))
    questions = _questions(placed, names, form=forms.JSON)
    for number, question in enumerate(questions, start=1):
        yield _with_id(question, number)


def _with_id(question: Question, number: int) -> Question:
    """Return a question with its id, or with its number if it has none."""
    name = question.row.get("id")
    if isinstance(name, float) and name.is_integer():
        name = int(name)  # a column of numbers with gaps, as pandas reads it
    if is_empty(name):
        question.row["id"] = str(number)
        return question._replace(has_id=False)
    question.row["id"] = name
    return question


def _questions(rows: Rows, names: "ColumnNames", form: str) -> Iterator[Question]:
    # A row of a table has all columns; one of JSON may lack some.
    has_cells = form in (forms.TABLE, *forms.SHEETS)
    is_table = has_cells or form in (forms.PARQUET, forms.ARROW)
    needed = COLUMNS if is_table else ("question", "context")
    for place, row in rows:
        if not isinstance(row, dict):
            raise UserError(f"{place} is no mapping", cure="correct or delete it")
        plan = names.plan(row)
        is_question = "question" in plan
        verdict = row.get("answer") if _TASK in row else None
        if "paragraphs" in row and not is_question:  # an article of SQuAD's shape
            title = rename(row, plan).get("title")
            for paragraph in _list_in(row, "paragraphs", place):
                yield from _paragraph_questions(place, title, paragraph, names)
        elif "qas" in row and not is_question:  # a paragraph, as MRQA has them
            yield from _paragraph_questions(place, None, row, names)
        elif verdict in ("reject", "ignore"):
            names.notes.add("tasks of Prodigy are not accepted and are left out", place.row)
        elif tuple(row) != ("header",):  # which MRQA writes first
            names.check(place, row, needed, plan=plan)
            if is_table and names.answers_needed:
                names.check_answers(row, plan)
            renamed = rename(row, plan)
            # An accepted task without spans has no answer.
            has_spans = renamed.get("answers") != [] or not is_empty(renamed.get("answer"))
            if verdict == "accept" and not has_spans:
                renamed["is_impossible"] = True
            cells = row if has_cells else None
            yield Question(place, row=renamed, cells=cells, plan=plan)
    names.check_all()


def _paragraph_questions(
    place: RowPlace, title: object, paragraph: object, names: "ColumnNames"
) -> Iterator[Question]:
    """Yield the questions of a paragraph of SQuAD's shape: its context, and qas."""
    questions = _list_in(paragraph, "qas", place)
    assert isinstance(paragraph, dict)  # as it has a list
    context = rename(paragraph, names.plan(paragraph)).get("context")
    for question in questions:
        row: RawRow = {"question": [question]}  # a fault, which is named later
        plan: Mapping[str, str] = {}
        if isinstance(question, dict):
            plan = names.plan(question)
            row = rename(question, plan)
        row["context"] = context
        row["title"] = title
        yield Question(place, row=row, plan=plan)


def _list_in(value: object, key: str, place: RowPlace) -> list[object]:
    """Return the list under a key. Raises UserError if there is none."""
    values = value.get(key) if isinstance(value, dict) else None
    if not isinstance(values, list):
        raise UserError(
            f"not of SQuAD's shape (no list {key!r})",
            key=str(place),
            cure="expected data > paragraphs > context, qas",
        )
    return values


class ColumnNames:
    """A file's own names of columns; a name that the file has not stands for nothing.

    Args:
        columns: as `data.columns`.
        where: the file, for messages.
        notes: gets the columns of answers that are named and missing, unless they are needed.
        answers_needed: whether they are.
    """

    def __init__(
        self, columns: Mapping[str, str], where: str, notes: Notes, answers_needed: bool
    ) -> None:
        self.columns = columns
        self.where = where
        self.notes = notes
        self.answers_needed = answers_needed
        self.seen: set[str] = set()  # names of COLUMNS that some row has
        self.replaced: set[str] = set()  # names of COLUMNS that stand for the user's
        self.noted: set[str] = set()  # names of COLUMNS that no row has, in the notes
        self.first_row: tuple[str, ...] = ()  # its names
        # A plan depends on the names alone, and most rows of a file have the same.
        self._plan = lru_cache(maxsize=_PLANS)(self._find)

    def own(self, name: str) -> str:
        """Return the file's name of a column, as the user says."""
        return self.columns.get(name, name)

    def of_table(self) -> list[str]:
        """Return all names, in small letters, of columns of which a table may lack no cell."""
        names = ["question", "context", *_OF_ANSWERS]
        own = [self.own(name) for name in names]
        spellings = [*names, *own, "answer_text", "answer text", "answertext"]
        return [name.lower() for name in spellings]

    def check(
        self, place: RowPlace, row: RawRow, names: Iterable[str], plan: Mapping[str, str]
    ) -> None:
        """Raise UserError if a row lacks a column of `names` that every question has, or that the
        user has named.
        """
        for name in names:
            is_missing = name not in plan
            if is_missing and (name in ("question", "context") or name in self.columns):
                self._miss(name, names=row, where=str(place))

    def check_answers(self, row: RawRow, plan: Mapping[str, str]) -> None:
        """Raise UserError if a table has no column of answers, under any name."""
        if plan.keys().isdisjoint((*_OF_ANSWERS, ANSWERABLE)):
            self._miss("answer", names=row, where=self.where)

    def check_all(self) -> None:
        """Raise UserError if no row has a column that the user has named; note those in whose place
        ours is read.
        """
        for name in self.columns:
            if self.first_row and name not in self.seen:
                self._miss(name, names=self.first_row, where=self.where)
        if self.replaced:
            missing = ", ".join(repr(self.own(name)) for name in sorted(self.replaced))
            kind = f"names of data.columns are missing, and ours are read: {missing}"
            self.notes.counts[f"{kind} ({_there(self.first_row)})"] = len(self.replaced)

    def _miss(self, name: str, names: Iterable[str], where: str) -> None:
        """Raise UserError as `name` is not among `names`, or note it if it is not needed."""
        # Questions can be answered without answers to compare with.
        has_notes_only = name in _OF_ANSWERS and not self.answers_needed
        if has_notes_only and name in self.noted:
            return
        own = self.own(name)
        near = _nearest(own, names)
        hint = f": did you mean {near!r}?" if near else ""
        if has_notes_only:
            self.noted.add(name)
            kind = f"data.columns.{name}: there is no column {own!r}, so no scores{hint}"
            self.notes.counts[kind] = 1
            return
        if name in self.columns:
            cure = Cure(f"correct data.columns{hint}", by_flag=f"correct --columns{hint}")
        else:
            yours = repr(near) if near else "..."
            cure = Cure(
                f"add it, or name yours in data.columns: {{{name}: {yours}}}",
                by_flag=f"add it, or name yours in --columns {name}={yours}",
            )
        raise UserError(f"no column {own!r} ({_there(names)})", key=where, cure=cure)

    def plan(self, row: RawRow) -> dict[str, str]:
        """Return the names of a row's columns by names of COLUMNS, found once for rows alike."""
        return self._plan(tuple(row))

    def _find(self, names: tuple[str, ...]) -> dict[str, str]:
        plan = {}
        for name in (*COLUMNS, ANSWERABLE):
            own = (
                self._find_own(name, names)
                if name in self.columns
                else self._find_ours(name, names)
            )
            if own is not None:
                plan[name] = own
        self.seen.update(plan)
        self.first_row = self.first_row or names
        return plan

    def _find_own(self, name: str, names: tuple[str, ...]) -> str | None:
        """Return the user's name of a column if it is among `names`; ours if these are ours, as one
        file of a run may have them: with another name the user's is misspelt.
        """
        own = self.columns[name]
        if own in names:
            return own
        has_users = any(other in names for key, other in self.columns.items() if other != key)
        near = _nearest(own, names)
        if name in names and not has_users and (near is None or near.lower() in COLUMNS):
            self.replaced.add(name)
            return name
        return None

    def _find_ours(self, name: str, names: tuple[str, ...]) -> str | None:
        """Return the name of a column that the user has not named: ours in any case, or a usual
        alias; of two ids or titles the first. Raises UserError if several columns could be meant.
        """
        # MRQA's answers with their places, beside those without.
        if name == "answers" and "detected_answers" in names:
            return "detected_answers"
        is_task = _TASK in names
        candidates = [own for own in names if own.lower() == name]
        if not candidates or name not in OURS_FIRST:
            candidates += [own for own in names if is_alias(own, name)]
        if name == "id" and LABEL in names:
            candidates.append(LABEL)
        if name == "answers" and is_task and "spans" in names:
            candidates.append("spans")
        if len(candidates) > 1 and name not in ("id", "title"):
            listed = " and ".join(map(repr, candidates))
            raise UserError(
                f"{listed} could be the {name}",
                key=self.where,
                cure=Cure(
                    f"name it in data.columns: {{{name}: ...}}",
                    by_flag=f"name it in --columns {name}=...",
                ),
            )
        # Beside other answers it is none, whatever its name.
        if name == "answer" and ("answers" in self.columns or is_task):
            return None
        candidates.sort(key=lambda own: own != name)
        return candidates[0] if candidates else None


def rename(row: RawRow, plan: Mapping[str, str]) -> RawRow:
    """Return the values of a row by names of COLUMNS; bytes that are UTF-8 as texts."""
    values = {name: row[own] for name, own in plan.items()}
    if bytes in map(type, values.values()):
        return {name: _decoded(value) for name, value in values.items()}
    return values


def is_alias(own: str, name: str) -> bool:
    """Return whether a file's own name of a column is a usual alias of a name of ours."""
    if own.lower() == name or name not in ALIASES:
        return False
    return ALIASES[name].fullmatch(letters_of(own)) is not None


def _there(names: Iterable[str]) -> str:
    return f"there: {', '.join(names):.100}"


def _nearest(own: str, names: Iterable[str]) -> str | None:
    """Return the name of a column that is most like another, in any case; None if none is."""
    by_small_letters = {name.lower(): name for name in names}
    near = difflib.get_close_matches(own.lower(), list(by_small_letters), n=1)
    return by_small_letters[near[0]] if near else None


def _decoded(value: object) -> object:
    """Return bytes that are UTF-8 as a text, and any other value as it is."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
