"""Questions of a file or folder, an official file, a data set of the hub, the generated world."""

import dataclasses
import glob
import hashlib
import itertools
import json
import logging
import re
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from detalbert.atomic import alone, whole_file
from detalbert.errors import Cure, Unavailable, UserError
from detalbert.hub import looks_like_path
from detalbert.integrity import checksum, find_damaged
from detalbert.reading import storage
from detalbert.reading.folders import find_files
from detalbert.reading.forms import ENDINGS, PACKED, Content, check_sheet, recognise, stem_of
from detalbert.reading.hub_rows import load_hub_rows
from detalbert.reading.json_values import collector_paused
from detalbert.reading.notes import Notes
from detalbert.settings.forms import TABLE
from detalbert.squad import world
from detalbert.squad.question_stream import LeftOut, checked_examples, file_examples
from detalbert.squad.rows import Question, file_questions, row_questions
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
# What an old `datasets` writes behind a shard's number.
_HASH = re.compile(r"(-\d{5}-of-\d{5})-[0-9a-f]+\b")
# The names of a folder's files for a split, without their endings.
STEMS = {"train": ("train",), "validation": ("validation", "valid", "dev")}


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a source is read: keys of `data:`."""

    columns: Mapping[str, str] = dataclasses.field(default_factory=dict)  # the source's own names
    form: str | None = None  # of its file; default: found
    sheet: str | None = None  # of a spreadsheet; default: the first
    no_answer: Sequence[str] = ()  # texts of answers that stand for none
    fraction: float | None = None  # of the texts of one source that are the validation set

    def parts(self) -> list[Any]:
        """Return what identifies it, [] for the default; as before there were form and no_answer
        unless one is set.
        """
        parts: list[Any] = []
        if self.columns or self.fraction:
            parts += [sorted(self.columns.items()), self.fraction]
        if self.form or self.no_answer:
            parts.append({"form": self.form, "no_answer": list(self.no_answer)})
        if self.sheet:
            parts.append({"sheet": self.sheet})
        return parts


DEFAULT = Reading()


class Source(NamedTuple):
    """The source of a split's questions, not read yet."""

    name: str  # as in the config
    split: str  # "train" or "validation"
    # The file, or the shards of a split in a folder; none of the hub and the generated world.
    contents: tuple[Content, ...]
    fingerprint: str  # changes when any byte of the questions may have changed
    reading: Reading = DEFAULT


def open_source(name: str, split: str, cache_dir: Path, reading: Reading = DEFAULT) -> Source:
    """Find `data.train` or `data.validation`; download an official file if missing.

    With a fraction both splits are of one source: what it has as its training questions.

    Raises:
        UserError: a file does not exist, holds no questions, or cannot be read or downloaded.
    """
    split_read = "train" if reading.fraction else split
    files = find_question_files(name, split=split_read, cache_dir=cache_dir)
    contents = [
        recognise(file, form=reading.form, plain=TABLE, sheet=reading.sheet) for file in files
    ]
    check_sheet(contents, reading.sheet)
    if files:
        fingerprint = "".join(map(_stamp, files))  # of one file its own
    elif name == "generated":
        fingerprint = _sha256(_world(split_read))
    else:
        rows = _hub_rows(name, split_read)
        fingerprint = _sha256(repr(rows))

    # How a source is read changes its questions, too.
    parts = reading.parts()
    if parts:
        text = json.dumps([fingerprint, *parts])
        fingerprint = _sha256(text)
    return Source(
        name,
        split=split,
        contents=tuple(contents),
        fingerprint=fingerprint,
        reading=reading,
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _stamp(file: storage.File) -> str:
    """Return what changes with a file's bytes."""
    if storage.is_remote(file.address):
        return file.stamp
    return checksum(Path(file.address))


def find_question_files(name: str, split: str, cache_dir: Path) -> list[storage.File]:
    """Return the file of a source, downloaded if it is an official one; the files of a pattern; the
    file of a split in a folder, or all of its parts; none of a hub name. Raises UserError for a
    path of nothing, and for a folder with several files that are no parts of one split.
    """
    key = f"data.{split}"
    # A file of that name here is the user's own.
    path = Path(name)
    if name in OFFICIAL_SHA256 and not path.exists():
        downloaded = _download(name, cache_dir)
        return storage.list_files(str(downloaded), key)
    is_remote = storage.is_remote(name)
    if path.is_file() or (is_remote and not name.endswith("/")):
        files = storage.list_files(name, key)
        if not files:
            raise UserError(
                f"{name}: no such file, or it is empty", key=key, cure="correct the address"
            )
        if len(files) == 1:
            return files
    if not name or is_remote or glob.glob(name, recursive=True):  # an empty name is refused there
        files = find_files(name, key=key, split=split)
        return _one_source(files, address=name, split=split, key=key)

    # A name of the hub, unless it looks like a file's.
    if glob.has_magic(name) or looks_like_path(name, (*ENDINGS, *PACKED)):
        cure = Cure(f"set {key} to a file of questions", by_flag="give --data a file of questions")
        raise UserError("no such file", key=str(path), cure=cure)
    return []


def _one_source(
    files: list[storage.File], address: str, split: str, key: str
) -> list[storage.File]:
    """Return the files of a pattern, the file of a folder that is a split by its name, or all of
    its files if they are parts of one; in order. Raises UserError for several of other names.
    """
    is_pattern = glob.has_magic(address) and not Path(address).exists()
    named = [file for file in files if stem_of(file.address).lower() in STEMS[split]]
    if named and not is_pattern:
        files = named
    addresses = [file.address for file in files]
    if len(files) > 1 and not is_pattern and not _are_parts(addresses):
        root = storage.prefix_of(address)
        names = ", ".join(name.removeprefix(root).lstrip("/") for name in addresses)
        first = PurePath(addresses[0])
        pattern = addresses[0].removesuffix(first.name) + f"*{first.suffix}"
        raise UserError(
            f"{address}: {names:.200}: which is it? Name one file, or several by a pattern that "
            f"fits them alone, such as {pattern}",
            key=key,
        )
    return sorted(files, key=lambda file: _in_order(file.address))


def _are_parts(addresses: list[str]) -> bool:
    """Return whether some names differ in one number only, which runs from 0 or 1: part-00000.json,
    part-00001.json. Years do not.
    """
    names = [_HASH.sub(r"\1", address) for address in addresses]
    words = {re.sub(r"\d+", "0", name) for name in names}
    if len(words) > 1:
        return False
    numbers = [map(int, re.findall(r"\d+", name)) for name in names]
    changing = [min(column) for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    return len(changing) == 1 and changing[0] <= 1


def _in_order(address: str) -> list[str | int]:
    """Return a key for sorting by name: part-2 comes before part-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", address)]


def read_examples(
    source: Source,
    left_out: list[LeftOut] | None = None,
    limit: int | None = None,
    notes: Notes | None = None,
) -> list[Example]:
    """Return at most `limit` questions of `source` in file order.

    Args:
        left_out: gets the faulty questions; None: they are an error.
        notes: gets what a user should know of the others.

    Raises:
        UserError: a file has a fault, or a question has one.
    """
    notes = Notes() if notes is None else notes
    reading = source.reading
    split = "train" if reading.fraction else source.split
    questions: Iterable[Question]
    if len(source.contents) > 1:
        notes.counts["files are read as one"] = len(source.contents)
    if source.contents:
        questions = file_questions(source.contents, notes=notes, columns=reading.columns)
    elif source.name == "generated":
        articles = json.loads(_world(split))["data"]
        questions = row_questions("generated", rows=articles, notes=notes)
    else:
        questions = row_questions(
            source.name,
            rows=_hub_rows(source.name, split),
            notes=notes,
            columns=reading.columns,
        )
    if reading.fraction:
        questions = _part(source, reading.fraction, questions)

    # Check them one at a time, up to the limit: later faults do not count.
    checked = checked_examples(
        questions,
        notes=notes,
        left_out=left_out,
        no_answer=reading.no_answer,
    )
    with collector_paused():
        examples = list(itertools.islice(checked, limit))
    if not examples:
        raise UserError(
            "no usable question in it",
            key=source.name,
            cure=f"set data.{source.split}",
        )
    return examples


def read_questions(file: Path | str, reading: Reading = DEFAULT) -> Iterator[Example]:
    """Yield the questions of a file to answer; `answers` is None if it has none. Raises UserError
    as `file_examples` does.
    """
    source = open_source(str(file), "validation", cache_dir=Path(), reading=reading)
    return file_examples(
        source.contents,
        columns=reading.columns,
        no_answer=reading.no_answer,
    )


def _part(source: Source, fraction: float, questions: Iterable[Question]) -> list[Question]:
    """Return the questions of a split: the validation set has `fraction` of the contexts, those
    with the lowest hashes, with all of their questions. Raises UserError for a single context.
    """
    # All of a context's questions go to one set: it would not be unseen in the other.
    everything = list(questions)
    contexts = [str(question.row.get("context")) for question in everything]
    by_hash = sorted(set(contexts), key=_sha256)
    if len(by_hash) == 1:
        raise UserError(
            f"{source.name} has one context, and each set needs one",
            key="data.validation_fraction",
            cure="name a file in data.validation",
        )
    # Each set has at least one.
    count = round(fraction * len(by_hash))
    count = max(count, 1)
    count = min(count, len(by_hash) - 1)
    held_out = set(by_hash[:count])

    part = []
    for question, context in zip(everything, contexts, strict=True):
        split = "validation" if context in held_out else "train"
        if split == source.split:
            part.append(question)
    return part


@lru_cache(maxsize=2)
def _world(split: str) -> str:
    return json.dumps(world.generate(split))


@lru_cache(maxsize=2)
def _hub_rows(name: str, split: str) -> list[dict[str, Any]]:
    return list(load_hub_rows(name, split=split, key=f"data.{split}"))


def _download(name: str, cache_dir: Path) -> Path:
    """Download an official file once, with progress; atomic, and only if its SHA-256 is correct."""
    target = cache_dir / name
    url = f"{OFFICIAL_URL}/{name}"
    sums = {target: OFFICIAL_SHA256[name]}
    if target.is_file() and not find_damaged(sums, cache_dir):
        return target
    if target.is_file():
        log.warning("%s: not the official file; fetching it again", target)
    digest = hashlib.sha256()
    try:
        with (
            alone(target),
            urllib.request.urlopen(url, timeout=30) as response,
            whole_file(target, binary=True) as file,
        ):
            size = int(response.headers.get("Content-Length") or 0)
            with waiting(f"downloading {name}", total=size or None, unit="B") as bar:
                while chunk := response.read(1 << 20):
                    file.write(chunk)
                    digest.update(chunk)
                    bar.update(len(chunk))
            if digest.hexdigest() != OFFICIAL_SHA256[name]:
                raise OSError("its SHA-256 is not the official one")
    except (OSError, HTTPException) as error:
        raise Unavailable(
            f"not here, and fetching {url} failed: {error}",
            key=name,
            cure=f"try again, or fetch {name} by hand and set the data key to its path",
        ) from None
    return target
