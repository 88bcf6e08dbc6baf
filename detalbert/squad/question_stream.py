"""Questions to answer, read one at a time: SQuAD JSON by article, JSON lines and CSV by row.

Unlike training's reader (sources.py), this one takes questions without a known answer and holds no
more of a file than one article or row.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from detalbert.errors import UserError, first_line
from detalbert.squad.sources import Question, article_questions, checked_examples, row_question
from detalbert.squad.windows import Example

MAX_CONTEXT = 1_000_000  # characters: about 250,000 tokens
MAX_QUESTION = 10_000
_PIECE = 1 << 16  # characters read at a time
_AFTER = set(" \t\r\n,:]}")  # the characters that can follow a JSON value


def read_questions(path: Path) -> Iterator[Example]:
    """The questions of a file; `answers` is None where the file gives none.

    `.jsonl`/`.ndjson`: one mapping per line with question, context and, optionally, id and
    answers; `.csv`/`.tsv`: columns question, context and, optionally, id; anything else: SQuAD
    JSON. A row without an id gets its number, from 1.
    Raises UserError that names the file and the place for anything that is not a question.
    """
    rows = {".jsonl": _json_lines, ".ndjson": _json_lines, ".csv": _csv_rows, ".tsv": _csv_rows}
    reader = rows.get(path.suffix.lower(), _articles)
    count = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for example in checked_examples(reader(str(path), file), answers_needed=False):
                check_text(f"{path}: question {example.id}", example.question, example.context)
                check_unicode(f"{path}: the id {example.id!r}", example.id)
                count += 1
                yield example
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        reason = first_line(error)
        raise UserError(f"{path}: cannot read it ({reason}); give --data a file") from None
    if not count:
        raise UserError(f"{path}: no question in it")


def check_text(where: str, question: str, context: str, max_context: int = MAX_CONTEXT) -> None:
    """Raise UserError for a question or a context that is empty, too long or not Unicode text."""
    limits = {"question": (question, MAX_QUESTION), "context": (context, max_context)}
    for name, (text, limit) in limits.items():
        if not text.strip():
            raise UserError(f"{where}: the {name} is empty; give it some text")
        if len(text) > limit:
            raise UserError(
                f"{where}: the {name} has {len(text):,} characters, {limit:,} at most are read; "
                "cut it"
            )
        check_unicode(f"{where}: the {name}", text)


def check_unicode(what: str, text: str) -> None:
    """Raise UserError for text with lone surrogates, which JSON and broken encodings can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{what} is not UTF-8 text; fix it") from None


def _articles(where: str, file: TextIO) -> Iterator[Question]:
    return article_questions(where, _JsonText(where, file).elements("data"))


def _json_lines(where: str, file: TextIO) -> Iterator[Question]:
    number = 0
    for line_number, line in enumerate(file, 1):
        if not line.strip():
            continue
        number += 1
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            raise UserError(f"{where}: line {line_number} is not JSON ({reason}); fix it") from None
        if not isinstance(row, dict) or not {"question", "context"} <= row.keys():
            raise UserError(
                f"{where}: line {line_number} is no mapping with question and context; fix it"
            )
        yield row_question(where, _with_id(row, number))


def _csv_rows(where: str, file: TextIO) -> Iterator[Question]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CONTEXT + 1))
    header = file.readline()
    wanted = {"question", "context"}
    for delimiter in ",;\t":
        names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
        if wanted <= set(names):
            break
    else:
        raise UserError(
            f"{where}: not CSV with columns question and context (its first line is "
            f"{header.strip()[:60]!r}); name the columns there"
        )
    rows = csv.DictReader(file, fieldnames=names, delimiter=delimiter)
    try:
        for number, row in enumerate(rows, 1):
            kept = {name: row[name] for name in ("id", "question", "context") if row.get(name)}
            yield row_question(where, _with_id(kept, number))
    except csv.Error as error:
        raise UserError(f"{where}: line {rows.line_num + 1}: {error}; fix it") from None


def _with_id(row: dict[str, Any], number: int) -> dict[str, Any]:
    given = row.get("id")
    return {**row, "id": str(number if given is None else given)}


class _JsonText:
    """A JSON mapping in a file: walks one of its lists and holds one element at a time."""

    def __init__(self, where: str, file: TextIO) -> None:
        self.where = where
        self.file = file
        self.text = ""  # read from the file; the part from `at` on is not used yet
        self.at = 0
        self.lines = 1  # number of the line on which `text` begins
        self.decoder = json.JSONDecoder()

    def elements(self, key: str) -> Iterator[Any]:
        """The elements of the list `key` of the mapping; the other keys are skipped."""
        missing = self._unknown(f"no list {key!r} at the top")
        found = False
        if not self._next("{"):
            raise missing
        while not self._next("}"):
            name = self._value()
            self._need(":")
            if name != key:
                self._value()
            else:
                found = True
                if not self._next("["):
                    raise missing
                while not self._next("]"):
                    yield self._value()
                    self._comma("]")
            self._comma("}")
        if not found:
            raise missing
        if self._peek():
            raise self._broken("more text after its end", self.at)

    def _peek(self) -> str:
        """The next character that is not white space, "" at the end."""
        while True:
            size = len(self.text)
            while self.at < size and self.text[self.at] in " \t\r\n":
                self.at += 1
            if self.at < size:
                return self.text[self.at]
            if not self._more():
                return ""

    def _next(self, character: str) -> bool:
        """Whether `character` comes next; if so, step over it."""
        if self._peek() != character:
            return False
        self.at += 1
        return True

    def _need(self, character: str) -> None:
        if not self._next(character):
            raise self._broken(f"expecting {character!r}", self.at)

    def _comma(self, end: str) -> None:
        """Step over a comma with something after it, unless `end` comes next."""
        if self._peek() == end:
            return
        self._need(",")
        if self._peek() == end:
            raise self._broken("a comma with nothing after it", self.at)

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.at)
            except RecursionError:
                raise self._broken("nested too deep", self.at) from None
            except ValueError as error:  # the text so far ends inside a value, or is wrong
                at = getattr(error, "pos", self.at) - self.at
                if not self._more():
                    raise self._broken(getattr(error, "msg", str(error)), at) from None
                continue
            used = end - self.at
            # More text may turn the number 1 into 12 or 1.5.
            if self.text[end : end + 1] in _AFTER or not self._more():
                self.at += used
                return value

    def _more(self) -> bool:
        """Read as much again as is held, so that a value is parsed few times. False at the end."""
        piece = self.file.read(max(_PIECE, len(self.text) - self.at))
        self.lines += self.text.count("\n", 0, self.at)
        self.text, self.at = self.text[self.at :] + piece, 0
        return bool(piece)

    def _broken(self, fault: str, at: int) -> UserError:
        line = self.lines + self.text.count("\n", 0, at)
        return self._unknown(f"line {line}: {fault}")

    def _unknown(self, fault: str) -> UserError:
        return UserError(
            f"{self.where}: not SQuAD JSON ({fault}); give SQuAD JSON, JSON lines (.jsonl) or CSV "
            "(.csv)"
        )
