"""Questions of a file or folder, an official file, a data set of the hub, the generated world."""

import hashlib
import itertools
import json
import logging
import urllib.request
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple

from detalbert import hub
from detalbert.atomic import alone, whole_file
from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.hub import looks_like_path
from detalbert.integrity import checksum, find_damaged
from detalbert.squad import rows, world
from detalbert.squad.question_stream import checked_examples
from detalbert.squad.rows import SUFFIXES, Question
from detalbert.squad.windows import Example
from detalbert.waiting import waiting

OFFICIAL_URL = "https://rajpurkar.github.io/SQuAD-explorer/dataset"
log = logging.getLogger(__name__)
OFFICIAL_SHA256 = {
    "train-v1.1.json": "3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
    "dev-v1.1.json": "95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
    "train-v2.0.json": "68dcfbb971bd3e96d5b46c7177b16c1a4e7d4bdef19fb204502738552dede002",
    "dev-v2.0.json": "80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
}
# The names of a folder's files for a split, without their endings.
STEMS = {"train": ("train",), "validation": ("validation", "valid", "dev")}


class Source(NamedTuple):
    """The source of a split's questions, not read yet."""

    name: str  # as in the config
    split: str  # "train" or "validation"
    path: Path | None  # the file; None for the hub and the generated world
    fingerprint: str  # changes when any byte of the questions may have changed
    columns: Mapping[str, str] = {}  # the source's own names of columns
    fraction: float | None = None  # of the texts of one source that are the validation set


def open_source(
    name: str,
    split: str,
    cache_dir: Path,
    columns: Mapping[str, str] | None = None,
    fraction: float | None = None,
) -> Source:
    """Find `data.train` or `data.validation`; download an official file if missing. Raises
    UserError if a file does not exist, or cannot be read or downloaded.

    Args:
        columns, fraction: `data.columns` and `data.validation_fraction`. With a fraction both
            splits are of one source: what it has as its training questions.
    """
    found = "train" if fraction else split
    if (path := find_file(name, found, cache_dir)) is not None:
        with as_user_error(lambda e: UserError(f"{path}: cannot read it: {first_line(e)}")):
            digest = checksum(path)
    else:
        content = _world(found) if name == "generated" else repr(_hub_rows(name, found))
        digest = hashlib.sha256(content.encode()).hexdigest()
    if columns or fraction:
        parts = [digest, sorted((columns or {}).items()), fraction]
        digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Source(name, split, path, digest, columns or {}, fraction)


def find_file(name: str, split: str, cache_dir: Path) -> Path | None:
    """Return the file of a source, downloaded if it is an official one; None if it has none.
    Raises UserError for a path of nothing, and a folder with several files of a split.
    """
    path = Path(name)
    if name in OFFICIAL_SHA256 and not path.exists():
        return _download(name, cache_dir)
    if path.is_dir():
        files = [path / f"{stem}{suffix}" for stem in STEMS[split] for suffix in SUFFIXES]
        files = [file for file in files if file.is_file()]
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise UserError(f"{path}: {names}: which is data.{split}? Name the file")
        return files[0] if files else None
    if looks_like_path(name, (*SUFFIXES, ".txt", ".xlsx")) and not path.is_file():
        raise UserError(f"{path}: no such file; set data.{split} to a file of questions")
    return path if path.is_file() else None


def read_examples(
    source: Source,
    skip_invalid: bool = False,
    limit: int | None = None,
    notes: Counter | None = None,
) -> tuple[list[Example], dict[str, int]]:
    """Return at most `limit` questions of `source` in file order, and the faults that were skipped.

    The faults are {kind of fault: number of questions}; `notes`: see `checked_examples`. Raises
    UserError for a fault of a file, and for the first of a question, unless `skip_invalid`.
    """
    split = "train" if source.fraction else source.split
    questions: Iterable[Question]
    if source.path is not None:
        questions = rows.file_questions(source.path, source.columns)
    elif source.name == "generated":
        questions = rows.article_questions("generated", json.loads(_world(split))["data"])
    else:
        name, columns = source.name, source.columns
        found = (rows.renamed(name, row, columns) for row in _hub_rows(name, split))
        questions = (rows.row_question(name, row, at) for at, row in enumerate(found, 1))
    if source.fraction:
        questions = _part(source, source.fraction, questions)
    faults: Counter = Counter()
    checked = checked_examples(questions, faults if skip_invalid else None, notes=notes)
    examples = list(itertools.islice(checked, limit))
    if not examples:
        raise UserError(f"{source.name}: no usable question in it; set data.{source.split}")
    return examples, dict(faults)


def _part(source: Source, fraction: float, questions: Iterable[Question]) -> list[Question]:
    """Return the questions of a split: the validation set has `fraction` of the contexts, those
    with the lowest hashes, with all of their questions. Raises UserError for a single context.
    """
    found = list(questions)
    hashes = {str(each[2]): hashlib.sha256(str(each[2]).encode()).digest() for each in found}
    contexts = sorted(hashes, key=hashes.__getitem__)
    if len(contexts) == 1:
        said = "has one context, and each set needs one; name a file in data.validation"
        raise UserError(f"data.validation_fraction: {source.name} {said}")
    held = set(contexts[: min(max(1, round(fraction * len(contexts))), len(contexts) - 1)])
    return [each for each in found if (str(each[2]) in held) == (source.split == "validation")]


@lru_cache(maxsize=2)
def _world(split: str) -> str:
    return json.dumps(world.generate(split))


@lru_cache(maxsize=2)
def _hub_rows(name: str, split: str) -> list[dict[str, Any]]:
    said = f"data.{split}: {name!r} is no file, and as a data set it does not load"
    return list(load_hub_rows(name, split, said))


def load_hub_rows(name: str, split: str, said: str) -> Any:
    """Load a split of a data set NAME, NAME@REVISION or NAME:CONFIG, memory-mapped. Raises
    `hub_errors`' UserError, which begins with `said`.
    """
    import datasets

    place, _, config = name.partition(":")
    options = {"split": split, "name": config or None}
    with hub.hub_errors(said):
        return hub.load_named(datasets.load_dataset, place, "dataset", **options)


def _download(name: str, cache_dir: Path) -> Path:
    """Download an official file once, with progress; atomic, and only if its SHA-256 is correct."""
    target, url = cache_dir / name, f"{OFFICIAL_URL}/{name}"
    sums = {target: OFFICIAL_SHA256[name]}
    if target.is_file() and not find_damaged(sums, cache_dir):
        return target
    if target.is_file():
        log.warning("%s: not the official file; fetching it again", target)
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
                raise OSError("its SHA-256 is not the official one")
    except (OSError, HTTPException) as error:
        said = f"{name}: not here, and fetching {url} failed: {error}; try again"
        raise Unavailable(f"{said}, or {by_hand}") from None
    return target
