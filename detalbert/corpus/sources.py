"""Sources of text, cut into the ranges that shards are made of.

| address | documents |
| --- | --- |
| `generated` | the passages of the embedded world, one document each |
| `botocore` | AWS's API reference, installed with Determined: see `api_text` |
| `*.txt`, `*.md` | by `data.article`: a line, the whole file, or what stands between blank lines |
| `*.jsonl`, `*.csv`, `*.parquet` | one per row, under `text_key` |
| `*.json` | a list of such rows, or a file of SQuAD's shape: its contexts |
| any of these, `.gz` or `.zst` | the same, compressed |
| a folder, a pattern with `*`, `s3://bucket/prefix`, what fsspec knows | all such files, by name |
| `NAME`, `NAME@REVISION`, `NAME:CONFIG` | the column of a hub data set's train split |
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import botocore
import pyarrow.parquet

from detalbert.atomic import write_json
from detalbert.corpus import api_text, storage
from detalbert.errors import UserError, as_user_error, first_line
from detalbert.hub import looks_like_path
from detalbert.integrity import read_sealed, seal
from detalbert.processes import count_cores
from detalbert.settings.text import SourceConfig
from detalbert.squad import world
from detalbert.squad.parquet import open_table
from detalbert.squad.sources import load_hub_rows
from detalbert.waiting import waiting

PLAIN = (".txt", ".md")
FORMS = {".jsonl": "jsonl", ".csv": "csv", ".parquet": "parquet", ".json": "squad"}
SUFFIXES = (*PLAIN, *FORMS)
READ = tuple(suffix + codec for codec in ("", *storage.CODECS) for suffix in SUFFIXES)
T = TypeVar("T")
_ROW_BYTES = 4_000  # of a hub document, on average, when its rows are shared out


class Part(NamedTuple):
    """A range of a source: documents that begin in bytes begin..end (exclusive) of a file's
    content, or rows begin..end. Some forms can only be read whole.
    """

    form: str  # generated, botocore, hub, parquet, squad, jsonl, csv, line, file or blank_line
    address: str  # of `generated`: the split
    end: int
    size: int  # of the whole file, in bytes or rows; if packed, of its content
    begin: int = 0
    packed: int = 0  # bytes of a compressed file; 0: it is not compressed
    exact: bool = False  # white space at the ends of documents is kept
    text_key: str = "text"
    unit: int = 1  # bytes per unit of `begin` and `end`, about

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of text."""
        return (self.end - self.begin) * self.unit


class Text(NamedTuple):
    """The text of one source: its files in order, and a fingerprint of the content."""

    parts: list[Part]
    fingerprint: str
    articles: str = ""  # what is one document of its plain text, if it has some


def open_text(
    source: SourceConfig, key: str, split: str, exact: bool = False, article: str = "line"
) -> Text:
    """Return the text of `source`, none of it in memory.

    Sizes of compressed files' content are not known yet: see `unpack_sizes`. Raises UserError,
    naming the config `key`, if the address has no text.

    Args:
        split: train or validation, of the generated world.
        exact: keep white space at the ends of documents, as for `data.documents`.
        article: of plain text, as `data.article`.
    """
    address, text_key = source.source, source.text_key
    if address == "generated":
        stamp = hashlib.sha256("".join(generated(split)).encode()).hexdigest()
        return Text([Part("generated", split, 1, 1, exact=exact)], stamp)
    if address == "botocore":
        sizes = {str(path): path.stat().st_size for path in api_text.find_services()}
        parts = [Part("botocore", path, size, size, exact=exact) for path, size in sizes.items()]
        return Text(parts, f"botocore {botocore.__version__}")
    told = "" if text_key == "text" else text_key
    if not (storage.is_remote(address) or looks_like_path(address, (*SUFFIXES, *storage.CODECS))):
        rows = hub_rows(address, key, text_key)
        part = Part("hub", address, len(rows), len(rows), 0, 0, exact, text_key, _ROW_BYTES)
        return Text([part], rows._fingerprint + told)
    files = storage.find_files(address, key, READ)
    parts = [_file_part(file, exact, article, text_key) for file in files]
    facts: Any = [(Path(file.address).name, file.size, file.stamp) for file in files]
    plain = any(part.form == article for part in parts)
    if plain and article != ("file" if exact else "line"):
        facts.append(article)
    stamp = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return Text(parts, stamp + told, article if plain else "")


def _file_part(file: storage.File, exact: bool, article: str, text_key: str) -> Part:
    path = Path(file.address)
    packed = file.size if path.suffix in storage.CODECS else 0
    form = FORMS.get((path.with_suffix("") if packed else path).suffix, article)
    if form == "parquet":
        with open_parquet(file.address) as table:
            rows = table.metadata.num_rows
        unit = max(1, file.size // max(1, rows))
        return Part(form, file.address, rows, rows, 0, 0, exact, text_key, unit)
    size = 0 if packed else file.size
    return Part(form, file.address, size, size, 0, packed, exact, text_key)


def open_parquet(address: str) -> pyarrow.parquet.ParquetFile:
    """Return the table of a file. Raises UserError if it is none."""
    said = f"{address}: not a Parquet file"
    with as_user_error(lambda error: UserError(f"{said} ({first_line(error)}); fix it")):
        return open_table(storage.open_file(address))


def unpack_sizes(text: Text, folder: Path) -> list[Part]:
    """Return the files of `text` with uncompressed sizes, kept in a file in `folder`: measuring
    reads each compressed file once.
    """
    if not any(part.packed for part in text.parts):
        return text.parts
    path = folder / f"sizes-{text.fingerprint[:24]}.json"
    found = read_sealed(path)
    if found is None or found.get("text") != text.fingerprint:
        with (
            ThreadPoolExecutor(count_cores()) as threads,  # decompression leaves the lock of Python
            waiting("measuring compressed text", len(text.parts), "files") as wait,
        ):
            sizes = list(wait.each(threads.map(_measure, text.parts)))
        found = {"text": text.fingerprint, "sizes": sizes}
        write_json(path, seal(found))
    pairs = zip(text.parts, found["sizes"], strict=True)
    return [part._replace(end=size, size=size) for part, size in pairs]


def _measure(part: Part) -> int:
    packed = part.packed
    return sum(map(len, storage.unpack(part.address, packed))) if packed else part.size


def cut_parts(parts: Iterable[Part], part_bytes: int) -> Iterator[Part]:
    """Yield `parts` cut into ranges of about `part_bytes` bytes, if they can be cut, in order."""
    for part in parts:
        if part.form not in ("generated", "botocore", "squad", "file"):
            step = max(1, part_bytes // part.unit)
            for begin in range(part.begin, part.end, step):
                yield part._replace(begin=begin, end=min(part.end, begin + step))
        else:
            yield part


def size_of(parts: Iterable[Part]) -> int:
    """Return the approximate bytes of text."""
    return sum(part.text_bytes for part in parts)


def group(items: Iterable[T], size: Callable[[T], int], least: int) -> Iterator[list[T]]:
    """Yield neighbours in lists of at least `least` in all, by the `size` of each; the last list
    may have less.
    """
    some, total = list[T](), 0
    for item in items:
        some.append(item)
        total += size(item)
        if total >= least:
            yield some
            some, total = [], 0
    if some:
        yield some


def generated(split: str) -> list[str]:
    """Return the passages of the embedded world."""
    return contexts(world.generate(split, seed=1))


def contexts(document: dict[str, Any]) -> list[str]:
    """Return the contexts of a document of SQuAD's shape."""
    return [p["context"] for article in document["data"] for p in article["paragraphs"]]


def hub_rows(address: str, key: str, text_key: str = "text") -> Any:
    """Load the rows of a hub name, memory-mapped. Raises UserError if it lacks the column."""
    name = address.partition(":")[0]
    said = f"{key}: {name!r} is not a file here, and the hub does not give it"
    rows = load_hub_rows(address, "train", said)
    if text_key not in rows.column_names:
        there = ", ".join(rows.column_names)
        raise UserError(f"{key}: {name!r} has no column {text_key!r}, but {there}")
    return rows
