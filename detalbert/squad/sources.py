"""SQuAD questions from a JSON file, an official file, a data set of the hub or the generated world.

A fault of a file (missing, not JSON, another shape) always raises UserError. So does a fault of one
question, unless `data.skip_invalid: true` has such questions counted and left out.
"""

import hashlib
import itertools
import json
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from detalbert import hub
from detalbert.atomic import alone, whole_file
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.hub import hub_error, looks_like_path
from detalbert.squad import world
from detalbert.squad.windows import Example

OFFICIAL_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
OFFICIAL_SHA256 = {
    "train-v1.1.json": "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
    "dev-v1.1.json": "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
    "train-v2.0.json": "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002",
    "dev-v2.0.json": "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
}


class Source(NamedTuple):
    """Where the questions of a split come from, not read yet."""

    name: str  # as in the config
    split: str  # "train" or "validation"
    path: Path | None  # the JSON file; None for the hub and the generated world
    fingerprint: str  # changes when any byte of the questions may have changed


def open_source(name: str, split: str, cache_dir: Path) -> Source:
    """Find `data.train` or `data.validation`; download an official file that is not there yet.

    Raises UserError for a file that does not exist, or that cannot be read or downloaded.
    """
    if name == "generated":
        return Source(name, split, None, hashlib.sha256(_world(split).encode()).hexdigest())
    path = Path(name)
    if name in OFFICIAL_SHA256 and not path.exists():
        path = _download(name, cache_dir)
    if path.is_file():
        try:
            return Source(name, split, path, hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError as error:
            raise UserError(f"{path}: cannot read it: {first_line(error)}") from None
    if looks_like_path(name, (".json",)) and not path.is_dir():
        raise UserError(f"{path}: no such file; set data.{split} to a SQuAD JSON file")
    rows = repr(_hub_rows(name, split)).encode()
    return Source(name, split, None, hashlib.sha256(rows).hexdigest())


def read_examples(
    source: Source, skip_invalid: bool = False, limit: int | None = None
) -> tuple[list[Example], dict[str, int]]:
    """The questions of `source` in file order, at most `limit`, and the faults that were skipped.

    Returns the examples and {kind of fault: how many questions}.
    Raises UserError that names the file and the question id for the first fault, unless
    `skip_invalid`.
    """
    if source.name == "generated":
        questions = _official_questions("generated", json.loads(_world(source.split)))
    elif source.path is None:
        questions = _hub_questions(source.name, _hub_rows(source.name, source.split))
    else:
        questions = _official_questions(str(source.path), _parse_json(source.path))
    faults: Counter = Counter()
    checked = checked_examples(questions, faults if skip_invalid else None)
    examples = list(itertools.islice(checked, limit))
    if not examples:
        raise UserError(f"{source.name}: no usable question in it; set data.{source.split}")
    return examples, dict(faults)


def checked_examples(
    questions: Iterable["Question"], faults: Counter | None = None, answers_needed: bool = True
) -> Iterator[Example]:
    """Check every question, one at a time; only their ids stay in memory.

    Args: faults: counts the faulty questions, which are left out; None: the first fault raises.
        answers_needed: if False, a question without a word on answers gets `answers` None.
    Raises: UserError that names the file and the question id.
    """
    seen: set = set()
    for where, title, context, question in questions:
        try:
            example = _checked(title, context, question, answers_needed)
            if example.id in seen:
                raise _Fault("duplicate id", f"question {example.id}: another one has this id")
        except _Fault as fault:
            if faults is None:
                hint = " or set data.skip_invalid: true" if answers_needed else ""
                raise UserError(f"{where}: {fault}; fix it{hint}") from None
            faults[fault.kind] += 1
            continue
        seen.add(example.id)
        yield example


class _Fault(Exception):
    """What is wrong with one question."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


Question = tuple[str, str, Any, Any]  # file or data set, title, context, raw question


def _official_questions(where: str, document: Any) -> Iterator[Question]:
    """Walk {"data": [{"title", "paragraphs": [{"context", "qas": [...]}]}]} (SQuAD 1.1 and 2.0)."""
    if not isinstance(document, dict) or not isinstance(document.get("data"), list):
        raise _wrong_shape(where, "no list 'data' at the top")
    yield from article_questions(where, document["data"])


def _wrong_shape(where: str, fault: str) -> UserError:
    """The error for a JSON file that is not SQuAD's."""
    return UserError(
        f"{where}: not of SQuAD's shape ({fault}); expected data > paragraphs > context, qas"
    )


def article_questions(where: str, articles: Iterable[Any]) -> Iterator[Question]:
    """The questions of the articles of an official file."""
    for number, article in enumerate(articles):
        if not isinstance(article, dict) or not isinstance(article.get("paragraphs"), list):
            raise _wrong_shape(where, f"article {number} has no list 'paragraphs'")
        for paragraph in article["paragraphs"]:
            if not isinstance(paragraph, dict) or not isinstance(paragraph.get("qas"), list):
                raise _wrong_shape(where, f"a paragraph of article {number} has no list 'qas'")
            for question in paragraph["qas"]:
                yield where, str(article.get("title", "")), paragraph.get("context"), question


def _hub_questions(where: str, rows: list[dict[str, Any]]) -> Iterator[Question]:
    for row in rows:
        if not isinstance(row.get("answers"), dict):
            raise UserError(f"{where}: not of SQuAD's shape (no 'answers'); use a SQuAD data set")
        yield row_question(where, row)


def row_question(where: str, row: Mapping[str, Any]) -> Question:
    """A question in the layout of `datasets`: answers is {"text": [...], "answer_start": [...]}.

    Answers of another shape pass through as they are; `checked_examples` judges them.
    """
    kept = ("id", "question", "answers", "is_impossible")
    question = {key: row[key] for key in kept if key in row}
    answers = row.get("answers")
    if isinstance(answers, dict):
        texts, starts = answers.get("text") or (), answers.get("answer_start") or ()
        pairs = itertools.zip_longest(texts, starts)
        question["answers"] = [{"text": text, "answer_start": start} for text, start in pairs]
        question["is_impossible"] = not texts
    return where, str(row.get("title", "")), row.get("context"), question


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
    if not answers_needed and not question.get("answers") and "is_impossible" not in question:
        return Example(name, title, context, text, None)
    answers = [] if question.get("is_impossible") else question.get("answers")
    if not isinstance(answers, list) or (not answers and not question.get("is_impossible")):
        raise _Fault("no answer", f"question {name}: no answers and not marked is_impossible")
    return Example(name, title, context, text, tuple(_answer(name, context, a) for a in answers))


def _answer(name: str, context: str, answer: Any) -> tuple[str, int]:
    text = answer.get("text") if isinstance(answer, dict) else None
    start = answer.get("answer_start") if isinstance(answer, dict) else None
    if not isinstance(text, str) or not text or type(start) is not int:
        raise _Fault("bad answer", f"question {name}: an answer needs a text and an answer_start")
    there = context[start : start + len(text)] if start >= 0 else ""
    if there != text:
        raise _Fault(
            "misplaced answer",
            f"question {name}: answer {text!r} is not at character {start} (there: {there!r})",
        )
    return text, start


def _parse_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); give a JSON file") from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}: not JSON (line {error.lineno}: {error.msg}); give a SQuAD JSON file"
        ) from None


@lru_cache(maxsize=2)
def _world(split: str) -> str:
    return json.dumps(world.generate(split))


@lru_cache(maxsize=2)
def _hub_rows(name: str, split: str) -> list[dict[str, Any]]:
    import datasets

    try:
        return list(hub.load(datasets.load_dataset, name, "dataset", split=split))
    except Exception as error:  # datasets raises whatever its loaders, pyarrow and HTTP raise
        raise hub_error(error)(
            f"data.{split}: {name!r} is no file, and as a data set it does not load: "
            f"{first_line(error)}"
        ) from None


def _download(name: str, cache_dir: Path) -> Path:
    """Fetch an official file once, with progress; it appears only if its SHA-256 is right."""
    target, url = cache_dir / name, f"{OFFICIAL_URL}/{name}"
    if target.is_file():
        return target
    by_hand = f"fetch {name} by hand and set the data key to its path"
    digest = hashlib.sha256()
    try:
        with (
            alone(target),
            urllib.request.urlopen(url, timeout=30) as response,
            whole_file(target, binary=True) as file,
        ):
            size = int(response.headers.get("Content-Length") or 0)
            with tqdm(total=size, unit="B", unit_scale=True, desc=name) as bar:
                while chunk := response.read(1 << 20):
                    file.write(chunk)
                    digest.update(chunk)
                    bar.update(len(chunk))
            if digest.hexdigest() != OFFICIAL_SHA256[name]:
                raise Unavailable(
                    f"{url}: its SHA-256 is not the official one; try again, or {by_hand}"
                )
    except OSError as error:
        raise Unavailable(
            f"{name}: not here, and fetching {url} failed: {error}; {by_hand}"
        ) from None
    return target
