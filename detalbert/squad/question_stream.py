"""Questions of a file, read and checked one at a time: SQuAD JSON, JSON lines or CSV."""

import csv
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from detalbert.errors import UserError, first_line
from detalbert.squad.json_stream import JsonText
from detalbert.squad.windows import Example

MAX_CONTEXT = 1_000_000  # characters: about 250,000 tokens
MAX_QUESTION = 10_000
SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv")
Question = tuple[str, str, Any, Any]  # file or data set, title, context, raw question


def read_questions(path: Path) -> Iterator[Example]:
    """Yield the questions of a file to answer; `answers` is None if the file has none. Raises
    UserError, naming file and place, if something is not a question.
    """
    count = 0
    for example in checked_examples(file_questions(path), answers_needed=False):
        check_text(f"{path}: question {example.id}", example.question, example.context)
        count += 1
        yield example
    if not count:
        raise UserError(f"{path}: no question in it")


def file_questions(path: Path) -> Iterator[Question]:
    """Yield the questions of a file, unchecked.

    `.jsonl`/`.ndjson`: one mapping per line with question, context and, optionally, id and answers;
    `.csv`/`.tsv`: columns question, context and, optionally, id; anything else: SQuAD JSON. A row
    without an id gets its number, from 1.
    """
    rows = {".jsonl": _json_lines, ".ndjson": _json_lines, ".csv": _csv_rows, ".tsv": _csv_rows}
    where, read = str(path), rows.get(path.suffix.lower())
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            articles = JsonText(where, file).elements("data")
            yield from read(where, file) if read else article_questions(where, articles)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        reason = first_line(error)
        raise UserError(f"{path}: cannot read it ({reason}); give a file of questions") from None


def checked_examples(
    questions: Iterable[Question], faults: Counter | None = None, answers_needed: bool = True
) -> Iterator[Example]:
    """Check and yield every question, one at a time; only their ids stay in memory.

    `faults` counts the faulty questions, which are skipped; None: raise UserError, naming the file
    and the question id. Unless `answers_needed`, a question without answers gets `answers` None.
    """
    seen: set = set()
    for where, title, context, question in questions:
        try:
            example = _checked(title, context, question, answers_needed)
            if example.id in seen:
                raise _Fault("duplicate id", f"question {example.id}: another one has this id")
        except _Fault as fault:
            kind, text = fault.args
            if faults is None:
                hint = " or set data.skip_invalid: true" if answers_needed else ""
                raise UserError(f"{where}: {text}; fix it{hint}") from None
            faults[kind] += 1
            continue
        seen.add(example.id)
        yield example


class _Fault(Exception):
    """A fault of one question: its kind, and what is wrong."""


def _checked(title: str, context: Any, question: Any, answers_needed: bool) -> Example:
    if not isinstance(question, dict):
        raise _Fault("not a question", f"article {title!r}: a question is not a mapping")
    text, name = question.get("question"), question.get("id")
    if not isinstance(name, str) or not name:
        raise _Fault("no id", f"article {title!r}: question {text!r} has no id")
    if not isinstance(text, str) or not text.strip():
        raise _Fault("no text", f"question {name}: it has no text")
    if not isinstance(context, str) or not context.strip():
        raise _Fault("empty context", f"question {name}: its context is empty")
    for what, value in (("id", name), ("question", text), ("context", context)):
        if not is_unicode(value):
            raise _Fault("not UTF-8", f"question {name!r}: the {what} is not UTF-8 text")
    if not answers_needed and not question.get("answers") and "is_impossible" not in question:
        return Example(name, title, context, text, None)
    answers = [] if question.get("is_impossible") else question.get("answers")
    if not isinstance(answers, list) or (not answers and not question.get("is_impossible")):
        raise _Fault("no answer", f"question {name}: no answers and not marked is_impossible")
    return Example(name, title, context, text, tuple(_answer(name, context, a) for a in answers))


def _answer(name: str, context: str, answer: Any) -> tuple[str, int]:
    found = answer if isinstance(answer, dict) else {}
    text, start = found.get("text"), found.get("answer_start")
    if not isinstance(text, str) or not text or type(start) is not int:
        raise _Fault("bad answer", f"question {name}: an answer needs a text and an answer_start")
    there = context[start : start + len(text)] if start >= 0 else ""
    if there != text:
        raise _Fault(
            "misplaced answer",
            f"question {name}: answer {text!r} is not at character {start} (there: {there!r})",
        )
    return text, start


def check_text(where: str, question: str, context: str, max_context: int = MAX_CONTEXT) -> None:
    """Raise UserError if question or context is empty, too long or not Unicode text."""
    limits = {"question": (question, MAX_QUESTION), "context": (context, max_context)}
    for name, (text, limit) in limits.items():
        if not text.strip():
            raise UserError(f"{where}: the {name} is empty; give it some text")
        if len(text) > limit:
            raise UserError(
                f"{where}: the {name} has {len(text):,} characters, {limit:,} at most are read; "
                "cut it"
            )
        if not is_unicode(text):
            raise UserError(f"{where}: the {name} is not UTF-8 text; fix it")


def is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON and broken encodings can contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong_shape(where: str, fault: str) -> UserError:
    """Return the error for a JSON file that is not SQuAD's."""
    return UserError(
        f"{where}: not of SQuAD's shape ({fault}); expected data > paragraphs > context, qas"
    )


def article_questions(where: str, articles: Iterable[Any]) -> Iterator[Question]:
    """Yield the questions of the articles of an official file."""
    for number, article in enumerate(articles):
        if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
            raise _wrong_shape(where, f"article {number} has no list 'paragraphs'")
        for paragraph in article["paragraphs"]:
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get("qas"), list):
                raise _wrong_shape(where, f"a paragraph of article {number} has no list 'qas'")
            for question in paragraph["qas"]:
                yield where, str(article.get("title", "")), paragraph.get("context"), question


def row_question(where: str, row: Mapping[str, Any], number: int | None = None) -> Question:
    """Return a question from a row of `datasets`: answers {"text": [...], "answer_start": [...]}.

    Answers of another shape are passed through; `checked_examples` reports them. `number` takes the
    place of a missing id.
    """
    kept = ("id", "question", "answers", "is_impossible")
    question = {key: row[key] for key in kept if key in row}
    if number is not None:
        question["id"] = str(number if row.get("id") is None else row["id"])
    answers = row.get("answers")
    if isinstance(answers, dict):
        texts, starts = answers.get("text") or [], answers.get("answer_start") or []
        if isinstance(texts, list) and isinstance(starts, list):
            pairs = itertools.zip_longest(texts, starts)
            question["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
            question["is_impossible"] = not texts
    return where, str(row.get("title", "")), row.get("context"), question


def _json_lines(where: str, file: TextIO) -> Iterator[Question]:
    lines = ((at, line) for at, line in enumerate(file, 1) if line.strip())
    for number, (line_number, line) in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            raise UserError(f"{where}: line {line_number} is not JSON ({reason}); fix it") from None
        if not isinstance(row, dict) or not {"question", "context"} <= row.keys():
            raise UserError(
                f"{where}: line {line_number} is no mapping with question and context; fix it"
            )
        yield row_question(where, row, number)


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
            yield row_question(where, kept, number)
    except csv.Error as error:
        raise UserError(f"{where}: line {rows.line_num + 1}: {error}; fix it") from None
