"""Raw questions of the rows of a file: under our names of columns, with an id, not checked yet.

A row is a mapping with `question` and `context` and, if there are such, `id`, `title` and answers
(labels.py), or an article of SQuAD's shape with many questions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from detalbert.errors import UserError
from detalbert.reading.forms import Content
from detalbert.reading.notes import Notes
from detalbert.reading.rows import Rows, rows_of_file
from detalbert.settings import forms
from detalbert.settings.hparams import COLUMNS
from detalbert.squad.labels import is_empty

MAX_CONTEXT = 1_000_000  # characters: about 250,000 tokens
# Names that public files use, for columns that a file has not under ours.
_ALIASES = {"answer": ("answer_text",), "id": ("guid", "qid")}
_PLANS = 1_000
_OF_ANSWERS = ("answer", "answers", "answer_start", "is_impossible")


class Question(NamedTuple):
    """A question as it stands in its file."""

    where: str  # file and place, for messages
    row: dict[str, Any]  # values by names of COLUMNS; with an id


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

    def each_file() -> Iterator[Question]:
        for content in contents:
            names = ColumnNames(columns or {}, content.file.address, notes, answers_needed)
            rows = rows_of_file(content, notes, names.of_table(), longest=MAX_CONTEXT + 1)
            yield from _questions(rows, names, content.form)
            names.check_all()

    yield from _numbered(each_file())


def row_questions(
    where: str, rows: Iterable[Any], notes: Notes, columns: Mapping[str, str] | None = None
) -> Iterator[Question]:
    """Yield the questions of rows of a hub data set or of articles, as `file_questions` does."""
    names = ColumnNames(columns or {}, where, notes, answers_needed=True)
    placed = ((f"{where}: row {number}", row) for number, row in enumerate(rows, 1))
    questions = _questions(placed, names, forms.JSON)
    yield from _numbered(questions)
    names.check_all()


def _numbered(questions: Iterable[Question]) -> Iterator[Question]:
    """Yield questions, those without an id with their number."""
    for number, (where, row) in enumerate(questions, 1):
        name = row.get("id")
        if isinstance(name, float) and name.is_integer():
            name = int(name)  # a column of numbers with gaps, as pandas reads it
        if is_empty(name):
            name = str(number)
        yield Question(where, {**row, "id": name})


def _questions(rows: Rows, names: "ColumnNames", form: str) -> Iterator[Question]:
    number = 0  # of an article
    for where, row in rows:
        if not isinstance(row, dict):
            raise UserError(f"{where} is no mapping; correct or delete it")
        is_question = names.has(row, "question")
        if "paragraphs" in row and not is_question:
            file = where.rpartition(": ")[0]
            yield from _article_questions(file, f"article {number}", row, names)
            number += 1
        elif "qas" in row and not is_question:  # a paragraph, as MRQA has them
            article = {"paragraphs": [row]}
            yield from _article_questions(where, "the row", article, names)
        elif tuple(row) != ("header",):  # which MRQA writes first
            # A row of a table has all columns; one of JSON may lack some.
            is_table = form in (forms.TABLE, forms.PARQUET, forms.ARROW)
            needed = COLUMNS if is_table else ("question", "context")
            names.check(where, row, needed)
            yield Question(where, names.rename(row))


def _article_questions(
    where: str, name: str, article: dict[str, Any], names: "ColumnNames"
) -> Iterator[Question]:
    """Yield the questions of an article of SQuAD's shape: data > paragraphs > context, qas."""
    title = names.rename(article).get("title")
    for paragraph in _list_in(article, "paragraphs", where, name):
        context = None
        if isinstance(paragraph, dict):
            context = names.rename(paragraph).get("context")
        for question in _list_in(paragraph, "qas", where, f"a paragraph of {name}"):
            if isinstance(question, dict):
                row = names.rename(question)
            else:
                row = {"question": [question]}  # a fault, which is named later
            row["context"] = context
            row["title"] = title
            yield Question(where, row)


def _list_in(value: Any, key: str, where: str, name: str) -> list[Any]:
    if isinstance(value, dict):
        inner = value.get(key)
        if isinstance(inner, list):
            return inner
    shape = "expected data > paragraphs > context, qas"
    raise UserError(f"{where}: not of SQuAD's shape ({name} has no list {key!r}); {shape}")


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
        self.there: tuple[Any, ...] = ()  # names of the first row
        self._plans: dict[tuple[Any, ...], dict[str, str]] = {}  # by the names of a row

    def own(self, name: str) -> str:
        """Return the file's name of a column, as the user says."""
        return self.columns.get(name, name)

    def of_table(self) -> list[str]:
        """Return all names, in small letters, of columns of which a table may lack no cell."""
        names = ["question", "context", *_OF_ANSWERS]
        own = [self.own(name) for name in names]
        spellings = names + own + list(_ALIASES["answer"])
        return [name.lower() for name in spellings]

    def has(self, row: dict[str, Any], name: str) -> bool:
        """Return whether a row has a column."""
        plan = self._plan(row)
        return name in plan

    def rename(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a row by names of COLUMNS; bytes that are UTF-8 as texts."""
        plan = self._plan(row)
        return {name: _decoded(row[own]) for name, own in plan.items()}

    def check(self, where: str, row: dict[str, Any], names: Iterable[str]) -> None:
        """Raise UserError if a row lacks a column of `names` that every question has, or that the
        user has named.
        """
        plan = self._plan(row)
        for name in names:
            if name in plan:
                continue
            is_needed = name in ("question", "context") or name in self.columns
            if is_needed:
                self._miss(where, name, tuple(row))

    def check_all(self) -> None:
        """Raise UserError if no row has a column that the user has named."""
        for name in self.columns:
            if self.there and name not in self.seen:
                self._miss(self.where, name, self.there)

    def _miss(self, where: str, name: str, there: tuple[Any, ...]) -> None:
        """Raise UserError for a missing column, or note it if it is not needed."""
        own = self.own(name)
        if name in _OF_ANSWERS and not self.answers_needed:
            kind = f"data.columns.{name}: there is no column {own!r}, so no scores"
            self.notes.counts[kind] = 1
            return
        names = ", ".join(map(str, there))
        if name in self.columns:
            cure = "correct data.columns"
        else:
            cure = f"add it, or name yours in data.columns: {{{name}: ...}}"
        raise UserError(f"{where}: no column {own!r} (there: {names:.100}); {cure}")

    def _plan(self, row: dict[str, Any]) -> dict[str, str]:
        """Return the names of a row's columns by names of COLUMNS."""
        key = tuple(row)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) > _PLANS:  # rows without end of other keys
                self._plans.clear()
            plan = self._find(row)
            self._plans[key] = plan
            self.seen.update(plan)
            if not self.there:
                self.there = key
        return plan

    def _find(self, row: dict[str, Any]) -> dict[str, str]:
        by_small_letters = {str(own).lower(): own for own in reversed(list(row))}
        plan = {}
        for name in COLUMNS:
            if name not in self.columns and self._is_other(name, row):
                continue
            own = self.own(name)
            if own in row:
                plan[name] = own
            elif name in self.columns:
                if name in row:  # one file of a run may have our names, as they are
                    plan[name] = name
            else:
                for spelling in (name, *_ALIASES.get(name, ())):
                    if spelling in by_small_letters:
                        plan[name] = by_small_letters[spelling]
                        break
        return plan

    def _is_other(self, name: str, row: dict[str, Any]) -> bool:
        """Return whether a column that the user has not named is none of ours, whatever its name.

        Raises:
            UserError: several columns could be meant.
        """
        spellings = (name, *_ALIASES.get(name, ()))
        meant = []
        for own in map(str, row):
            if own.lower() in spellings:
                meant.append(own)
        if len(meant) > 1 and name not in ("id", "title"):
            names = " and ".join(map(repr, meant))
            cure = f"name it in data.columns: {{{name}: ...}}"
            raise UserError(f"{self.where}: {names} could be the {name}; {cure}")
        # `answer` of Prodigy's rows, whose answers are `spans`, says "accept".
        return name == "answer" and "answers" in self.columns


def _decoded(value: Any) -> Any:
    """Return bytes that are UTF-8 as a text, and any other value as it is."""
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
