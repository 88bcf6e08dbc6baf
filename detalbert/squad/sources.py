"""SQuAD questions from a file, an official file, a data set of the hub or the generated world."""

import hashlib
import itertools
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from detalbert import hub
from detalbert.atomic import alone, whole_file
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.hub import looks_like_path
from detalbert.squad import world
from detalbert.squad.question_stream import (
    SUFFIXES,
    Question,
    article_questions,
    checked_examples,
    file_questions,
    row_question,
)
from detalbert.squad.windows import Example
from detalbert.waiting import waiting

OFFICIAL_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
OFFICIAL_SHA256 = {
    "train-v1.1.json": "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
    "dev-v1.1.json": "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
    "train-v2.0.json": "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002",
    "dev-v2.0.json": "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
}


class Source(NamedTuple):
    """The source of a split's questions, not read yet."""

    name: str  # as in the config
    split: str  # "train" or "validation"
    path: Path | None  # the file; None for the hub and the generated world
    fingerprint: str  # changes when any byte of the questions may have changed


def open_source(name: str, split: str, cache_dir: Path) -> Source:
    """Find `data.train` or `data.validation`; download an official file if missing. Raises
    UserError if a file does not exist, or cannot be read or downloaded.
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
    if looks_like_path(name, SUFFIXES) and not path.is_dir():
        raise UserError(f"{path}: no such file; set data.{split} to a file of questions")
    rows = repr(_hub_rows(name, split)).encode()
    return Source(name, split, None, hashlib.sha256(rows).hexdigest())


def read_examples(
    source: Source, skip_invalid: bool = False, limit: int | None = None
) -> tuple[list[Example], dict[str, int]]:
    """Return at most `limit` questions of `source` in file order, and the faults that were skipped.

    The faults are {kind of fault: number of questions}. Raises UserError for a fault of a file, and
    for the first of a question, unless `skip_invalid`.
    """
    if source.name == "generated":
        questions = article_questions("generated", json.loads(_world(source.split))["data"])
    elif source.path is None:
        questions = _hub_questions(source.name, _hub_rows(source.name, source.split))
    else:
        questions = file_questions(source.path)
    faults: Counter = Counter()
    checked = checked_examples(questions, faults if skip_invalid else None)
    examples = list(itertools.islice(checked, limit))
    if not examples:
        raise UserError(f"{source.name}: no usable question in it; set data.{source.split}")
    return examples, dict(faults)


def _hub_questions(where: str, rows: list[dict[str, Any]]) -> Iterator[Question]:
    for row in rows:
        if not isinstance(row.get("answers"), dict):
            raise UserError(f"{where}: not of SQuAD's shape (no 'answers'); use a SQuAD data set")
        yield row_question(where, row)


@lru_cache(maxsize=2)
def _world(split: str) -> str:
    return json.dumps(world.generate(split))


@lru_cache(maxsize=2)
def _hub_rows(name: str, split: str) -> list[dict[str, Any]]:
    import datasets

    with hub.hub_errors(f"data.{split}: {name!r} is no file, and as a data set it does not load"):
        rows = list(hub.load_named(datasets.load_dataset, name, "dataset", split=split))
    return rows


def _download(name: str, cache_dir: Path) -> Path:
    """Download an official file once, with progress; atomic, and only if its SHA-256 is correct."""
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
            with waiting(f"downloading {name}", size or None, "B") as bar:
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
