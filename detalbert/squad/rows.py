"""Files of questions as streams: SQuAD JSON, and rows of CSV, TSV, JSON lines, Parquet, a hub.

A row is a mapping with `question` and `context` and, if known, `id`, `title`, and the answers:
`answer` (a text, or a list of texts; empty: the context has none) or `answers` in SQuAD's layout.
"""

import contextlib
import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from detalbert.errors import UserError, all_lines, as_user_error, first_line
from detalbert.settings.hparams import COLUMNS
from detalbert.squad.parquet import open_table, rows_of_table

MAX_CONTEXT = 1_000_000  # characters: about 250,000 tokens
_PIECE = 1 << 16  # characters read at a time
_SPACE = re.compile(r"[ \t\r\n]*")
_AFTER = set(" \t\r\n,:]}")  # the characters that can follow a JSON value
_DECODER = json.JSONDecoder()
Question = tuple[str, str, Any, Any]  # file or data set, title, context, raw question
Row = dict[str, Any]
Rows = Iterator[tuple[str, Row]]  # each with its place, for messages


@contextlib.contextmanager
def unicode_text(path: Path) -> Iterator[TextIO]:
    """Open a file of UTF-8 text, or of UTF-16 with a byte order mark. Raises UserError if it, or
    what is read from it in the block, is something else.
    """
    try:
        with path.open("rb") as file:
            marked = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        with path.open(encoding="utf-16" if marked else "utf-8-sig", newline="") as text:
            yield text
    except UnicodeError:
        cure = "save it as UTF-8 (a workbook: as CSV UTF-8)"
        raise UserError(f"{path}: not UTF-8 text; {cure}") from None
    except OSError as error:
        reason = first_line(error)
        raise UserError(f"{path}: cannot read it ({reason}); give a file of questions") from None


class JsonText:
    """A JSON mapping in a file: iterates over one of its lists with one element in memory."""

    def __init__(self, where: str, file: TextIO) -> None:
        self.where, self.file = where, file
        self.text, self.at = "", 0  # read from the file; the part from `at` on is not used yet
        self.lines = 1  # number of the line on which `text` begins

    def elements(self, key: str) -> Iterator[Any]:
        """Yield the elements of the list `key` of the mapping; skip the other keys."""
        found = False
        for _ in self._items("{", "}"):
            name = self._value()
            self._need(":")
            if name == key:
                found = True
                for _ in self._items("[", "]"):
                    yield self._value()
            else:
                self._value()
        if not found or self._peek():
            raise self._broken("more text after its end" if found else f"it has no list {key!r}")

    def _peek(self) -> str:
        """Return the next character that is not white space, "" at the end."""
        while True:
            self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) or not self._more():
                return self.text[self.at : self.at + 1]

    def _skip(self, character: str) -> bool:
        """Return whether `character` comes next; if so, skip it."""
        found = self._peek() == character
        self.at += found
        return found

    def _need(self, character: str) -> None:
        if not self._skip(character):
            raise self._broken(f"expecting {character!r}")

    def _items(self, begin: str, end: str) -> Iterator[None]:
        """Yield before every item from `begin` to `end`, and skip the commas between them."""
        self._need(begin)
        more = not self._skip(end)
        while more:
            yield
            if more := not self._skip(end):
                self._need(",")

    def _value(self) -> Any:
        self._peek()
        more = True
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
                # More text may turn the number 1 into 12 or 1.5.
                if not more or self.text[end : end + 1] in _AFTER:
                    self.at = end
                    return value
            except (ValueError, RecursionError) as error:  # wrong, or it goes on in the file
                if not more:
                    self.at = getattr(error, "pos", self.at)
                    raise self._broken(getattr(error, "msg", str(error))) from None
            more = self._more()

    def _more(self) -> bool:
        """Read as much again as is in memory, to parse a value few times; False at the end."""
        piece = self.file.read(max(_PIECE, len(self.text) - self.at))
        self.lines += self.text.count("\n", 0, self.at)
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)

    def _broken(self, fault: str) -> UserError:
        line = self.lines + self.text.count("\n", 0, self.at)
        return UserError(
            f"{self.where}: not SQuAD JSON (line {line}: {fault}); give SQuAD JSON, JSON lines "
            "(.jsonl) or CSV (.csv)"
        )


def row_question(where: str, row: Row, number: int) -> Question:
    """Return the question of a row; `number` takes the place of a missing id. Answers of another
    shape are passed through; `checked_examples` reports them.
    """
    question: Row = {key: row[key] for key in ("question", "answers") if key in row}
    question["id"] = str(number) if row.get("id") in (None, "") else row["id"]
    if "is_impossible" in row:
        question["is_impossible"] = str(row["is_impossible"]).lower() in ("true", "1")
    answers, texts, starts = row.get("answers"), None, None
    if isinstance(answers, dict):  # of `datasets`: {"text": [...], "answer_start": [...]}
        texts, starts = answers.get("text"), answers.get("answer_start")
    elif "answer" in row and not answers:
        given = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        texts = [text for text in given if text is not None and str(text).strip()]
    if isinstance(texts, list) and isinstance(starts, (list, type(None))):
        pairs = itertools.zip_longest(texts, starts or [])
        question["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
        question["is_impossible"] = not texts
    return where, str(row.get("title") or ""), row.get("context"), question


def renamed(where: str, row: Row, columns: Mapping[str, str]) -> Row:
    """Return the row under the names of COLUMNS in place of a file's own, `columns`, where it has
    those. Raises UserError if it lacks question or context.
    """
    own = {name: columns[name] if columns.get(name) in row else name for name in COLUMNS}
    for name in ("question", "context"):
        if own[name] not in row:
            there = ", ".join(map(str, row))
            said = f"no column {columns.get(name, name)!r} (there: {there:.100})"
            raise UserError(f"{where}: {said}; add it, or name yours in data.columns")
    return {name: row[column] for name, column in own.items() if column in row}


def _json_lines(path: Path) -> Rows:
    with unicode_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                why = getattr(error, "msg", str(error))
                raise UserError(f"{path}: line {number} is not JSON ({why}); fix it") from None
            yield f"{path}: line {number}", row if isinstance(row, dict) else {}


def _table(path: Path) -> Rows:
    with unicode_text(path) as file:
        for row in table_rows(str(path), file):
            yield str(path), row


def table_rows(where: str, lines: Iterator[str], longest: int = MAX_CONTEXT + 1) -> Iterator[Row]:
    """Yield the rows of a table that are not empty; comma, semicolon or tab separate its cells, of
    at most `longest` characters. Raises UserError, naming the line in which a row begins, for text
    under no name, a name twice and quotes in the wrong place: what follows would be misread.
    """
    csv.field_size_limit(longest)
    header = next(lines, "").removeprefix("\ufeff")
    delimiter = max(",;\t", key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise UserError(f"{where}: two columns are named {twice[0]!r}; rename one")
    reader, line = csv.reader(lines, delimiter=delimiter, strict=True), 2
    try:
        for cells in reader:
            if any(cells[len(names) :]):
                raise csv.Error(f"{len(cells)} cells under {len(names)} names")
            if any(cells):
                yield dict(itertools.zip_longest(names, cells[: len(names)]))
            line = reader.line_num + 2
    except csv.Error as error:
        quoted = "a text with separators, quotes or line breaks stands in quotes, its own doubled"
        raise UserError(f"{where}: line {line}: {error}; fix it: {quoted}") from None


def _cell(text: str | None) -> Any:
    """Return a cell's text, or the list or mapping that it holds as JSON."""
    if text and text[0] + text[-1] in ("[]", "{}"):
        with contextlib.suppress(ValueError):
            return json.loads(text)
    return text


def _parquet(path: Path) -> Rows:
    def unreadable(error: BaseException) -> UserError:
        return UserError(f"{path}: not a Parquet file ({all_lines(error)}); fix it")

    with as_user_error(unreadable), open_table(path) as table:
        for row in rows_of_table(table, table.schema_arrow.names):
            yield str(path), row


READERS: dict[str, Callable[[Path], Rows]] = {
    **dict.fromkeys((".jsonl", ".ndjson"), _json_lines),
    **dict.fromkeys((".csv", ".tsv"), _table),
    ".parquet": _parquet,
}
SUFFIXES = (".json", *READERS)


def file_questions(path: Path, columns: Mapping[str, str] | None = None) -> Iterator[Question]:
    """Yield the questions of a file, unchecked: rows by its ending (READERS), else SQuAD JSON.

    `columns` are the file's names for columns of COLUMNS. A row without an id gets its
    number, from 1.
    """
    where, read = str(path), READERS.get(path.suffix.lower())
    if read is None:
        with unicode_text(path) as file:
            yield from article_questions(where, JsonText(where, file).elements("data"))
        return
    for number, (place, row) in enumerate(read(path), 1):
        row = renamed(place, row, columns or {})
        if read is _table:
            row |= {name: _cell(row[name]) for name in ("answer", "answers") if name in row}
        yield row_question(where, row, number)


def article_questions(where: str, articles: Iterable[Any]) -> Iterator[Question]:
    """Yield the questions of the articles of an official file."""
    for number, article in enumerate(articles):
        name = f"article {number}"
        for paragraph in _list_in(article, "paragraphs", where, name):
            for question in _list_in(paragraph, "qas", where, f"a paragraph of {name}"):
                yield where, str(article.get("title", "")), paragraph.get("context"), question


def _list_in(value: Any, key: str, where: str, name: str) -> list[Any]:
    if isinstance(value, dict) and isinstance(found := value.get(key), list):
        return found
    wanted = "expected data > paragraphs > context, qas"
    raise UserError(f"{where}: not of SQuAD's shape ({name} has no list {key!r}); {wanted}")
