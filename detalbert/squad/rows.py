"""Rows of questions: CSV, TSV, JSON lines, Parquet, and data sets of a hub.

A row is a mapping with `question` and `context` and, if known, `id`, `title`, and the answers:
`answer` (a text, or a list of texts; empty: the context has none) or `answers` in SQuAD's layout.
"""

import contextlib
import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pyarrow.parquet

from detalbert.errors import UserError, all_lines, as_user_error, first_line
from detalbert.settings.hparams import COLUMNS

MAX_CONTEXT = 1_000_000  # characters: about 250,000 tokens
Question = tuple[str, str, Any, Any]  # file or data set, title, context, raw question
Row = dict[str, Any]


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


def row_question(where: str, row: Row, number: int) -> Question:
    """Return the question of a row; `number` takes the place of a missing id. Answers of another
    shape are passed through; `checked_examples` reports them.
    """
    question: Row = {key: row[key] for key in ("question", "answers") if key in row}
    question["id"] = str(number) if row.get("id") in (None, "") else row["id"]
    if "is_impossible" in row:
        question["is_impossible"] = str(row["is_impossible"]).lower() in ("true", "1")
    answers = row.get("answers")
    if isinstance(answers, dict):  # of `datasets`: {"text": [...], "answer_start": [...]}
        texts, starts = answers.get("text"), answers.get("answer_start")
        if isinstance(texts, list) and isinstance(starts, (list, type(None))):
            pairs = itertools.zip_longest(texts, starts or [])
            question["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
            question["is_impossible"] = not texts
    elif "answer" in row and not answers:
        given = row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        texts = [text for text in given if text is not None and str(text).strip()]
        question["answers"] = [{"text": text} for text in texts]
        question["is_impossible"] = not texts
    return where, str(row.get("title") or ""), row.get("context"), question


def renamed(where: str, rows: Iterable[Row], columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows with the names of COLUMNS in place of a file's own, `columns`, where it has
    those. Raises UserError if the first row lacks question or context.
    """
    names: dict[str, str] = {}  # of the file -> of COLUMNS
    for row in rows:
        if not names:
            own = {name: columns[name] if columns.get(name) in row else name for name in COLUMNS}
            for name in ("question", "context"):
                if own[name] not in row:
                    there = ", ".join(map(str, row))
                    raise UserError(
                        f"{where}: no column {columns.get(name, name)!r} (there: {there:.100}); "
                        "add it, or name yours in data.columns"
                    )
            names = {column: name for name, column in own.items()}
        yield {names[column]: value for column, value in row.items() if column in names}


def _json_lines(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    with unicode_text(path) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                why = getattr(error, "msg", str(error))
                raise UserError(f"{path}: line {number} is not JSON ({why}); fix it") from None
            if not isinstance(row, dict):
                row = {}
            yield from renamed(f"{path}: line {number}", [row], columns)


def _table(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Yield the rows of a CSV file."""
    with unicode_text(path) as file:
        for row in renamed(str(path), table_rows(str(path), file), columns):
            given: Row = {name: _cell(row[name]) for name in ("answer", "answers") if name in row}
            yield {**row, **given}


def table_rows(where: str, lines: Iterator[str], longest: int = MAX_CONTEXT + 1) -> Iterator[Row]:
    """Yield the rows of a table, the lines of which are separated by comma, semicolon or tab.
    `longest` are the characters of a cell, at most.
    """
    csv.field_size_limit(longest)
    header = next(lines, "").removeprefix("\ufeff")
    delimiter = max(",;\t", key=header.count)
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
    return _cells(where, csv.reader(lines, delimiter=delimiter, strict=True), names)


def _cells(where: str, reader: Any, names: list[str]) -> Iterator[Row]:
    """Yield the rows that are not empty. Raises UserError, naming the line in which a row begins,
    for text under no name and for quotes in the wrong place: what follows would be misread.
    """
    line = 2
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


def _parquet(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    why = "not a Parquet file"
    with as_user_error(lambda error: UserError(f"{path}: {why} ({all_lines(error)}); fix it")):
        batches = pyarrow.parquet.ParquetFile(path).iter_batches(1000)
        rows = (row for batch in batches for row in batch.to_pylist())
        yield from renamed(str(path), rows, columns)


READERS: dict[str, Callable[[Path, Mapping[str, str]], Iterator[Row]]] = {
    **dict.fromkeys((".jsonl", ".ndjson"), _json_lines),
    **dict.fromkeys((".csv", ".tsv"), _table),
    ".parquet": _parquet,
}
