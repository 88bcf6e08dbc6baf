"""The documents of a text, one after another, each whole.

| address | documents |
| --- | --- |
| `generated` | the passages of the embedded world, one document each |
| `botocore` | AWS's API reference, installed with Determined: see `api_text` |
| a file, a folder, a pattern with `*`, `s3://bucket/prefix` | its files' |
| `NAME`, `NAME@REVISION`, `NAME:CONFIG`; a folder cloned from the hub | its train split's rows |

A file of rows has a document per row, under `text_key`; plain text has them by `data.article`: one
line or many, the file, or what blank lines enclose. What is traded: a file is read from its start
by one process, so a corpus in one file is read no faster by several machines.
"""

import hashlib
import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import botocore

from detalbert import addresses, hub
from detalbert.addresses import ending_of
from detalbert.corpus import api_text
from detalbert.errors import UserError
from detalbert.reading import records
from detalbert.settings.text import CorpusConfig, SourceConfig
from detalbert.squad.sources import SHIPPED
from detalbert.sums import json_sum

PLAIN = (".txt", ".md")
ENDINGS = (*PLAIN, ".jsonl", ".ndjson", ".json", ".parquet")
LONGEST = 1 << 28  # characters of a document
_TEXT_PER_ROW = 4_000  # bytes of a hub's document, about
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 not
_HELD_OUT = re.compile("(?<![a-z])(test|valid|validation|val|dev|eval)(?![a-z])", re.IGNORECASE)
log = logging.getLogger(__name__)


class Unit(NamedTuple):
    """Text that one process reads from its start to its end: a file, mostly."""

    name: str
    size: int  # bytes, about
    stamp: object  # changes with its content; of JSON's types
    read: Callable[[], Iterable[str]]  # its documents; "" for a row without text
    source: str = ""  # name of its source, if there are several
    held_out: float = 0.0  # fraction of its documents that is for validation


def open_texts(data: CorpusConfig) -> list[list[Unit]]:
    """Return the units of each source in order, none of their text in memory. Without any source
    for validation, some documents of the text are held out.

    Raises:
        UserError: an address has no text.
        Unavailable: a server fails.
    """
    share = 0.0 if data.held_out else data.validation_fraction
    sources = [(source, data.source, "train", share) for source in data.training]
    sources += [(source, data.held_out_source, "validation", 1.0) for source in data.held_out]
    texts = []
    for source, key, split, held_out in sources:
        units = _open_source(
            source,
            f"data.{key}",
            split,
            data.article,
        )
        texts.append([unit._replace(source=source.name or "", held_out=held_out) for unit in units])
    return texts


def fingerprint(texts: list[list[Unit]]) -> str:
    """Return a SHA-256 that changes with the content of the texts."""
    return json_sum([(unit.source, unit.held_out, unit.stamp) for units in texts for unit in units])


def _open_source(
    source: SourceConfig,
    key: str,
    split: str,
    article: str,
) -> list[Unit]:
    """Return the units of a source.

    Args:
        key: the config key of the source, for messages.
        split: train or validation, of the generated world and of a hub's data set.
        article: what is one document of plain text.
    """
    address = source.source
    if address == "generated":
        passages = generated(split)
        return [
            Unit(
                address,
                sum(map(len, passages)),
                json_sum(passages),
                lambda: passages,
            )
        ]
    if address == "botocore":
        return [
            Unit(
                address,
                17_000_000,
                botocore.__version__,
                api_text.read_services,
            )
        ]
    if not _is_data_set(address):
        return _open_files(
            address,
            key,
            article,
            source.text_key,
        )
    rows = hub.load_rows(address, split=split, key=key)

    def read() -> Iterator[str]:
        for number, row in enumerate(rows):
            yield text_of(row, f"{address}: row {number}", source.text_key)

    stamp = [rows._fingerprint, source.text_key]
    return [
        Unit(
            address,
            _TEXT_PER_ROW * len(rows),
            stamp,
            read,
        )
    ]


def generated(split: str) -> list[str]:
    """Return the passages of the embedded world."""
    articles = records.read_rows(f"{SHIPPED}/world-{split}.json.gz")
    return [paragraph["context"] for _, article in articles for paragraph in article["paragraphs"]]


def _is_data_set(address: str) -> bool:
    """Return whether an address is a hub's data set: by its name, or as a folder."""
    if not addresses.is_path(address, endings=ENDINGS):
        return True
    card = Path(address, "README.md")
    return card.is_file() and card.read_bytes().startswith(b"---")


def _open_files(
    address: str,
    key: str,
    article: str,
    text_key: str,
) -> list[Unit]:
    files = addresses.find_files(address, key=key, endings=ENDINGS)
    # Of a folder or a pattern, files of other endings are not among them.
    if ending_of(files[0]) not in ENDINGS:
        raise UserError(
            f"not a file of text by its ending ({', '.join(ENDINGS)}; also packed)",
            key=files[0],
            cure="save it as one of these",
        )
    plain = [file for file in files if ending_of(file) in PLAIN]
    if 0 < len(plain) < len(files):
        problem = f"{address} has files of rows and of plain text"
        raise UserError(problem, key=key, cure="name those of one kind by a pattern, such as *.txt")
    held_out = [file for file in files if _HELD_OUT.search(PurePath(file).name)]
    if 0 < len(held_out) < len(files):
        log.warning("%s: maybe held-out data, and read: %.200s", key, ", ".join(held_out))

    how = article if plain else text_key
    system, _ = addresses.open_system(files[0])
    infos = system.get_file_info([file.rpartition("://")[2] for file in files])
    return [
        Unit(
            file,
            size=info.size,
            stamp=[info.base_name, info.size, info.mtime_ns, how],
            read=partial(read_file, file, how),
        )
        for file, info in zip(files, infos, strict=True)
    ]


def read_file(address: str, how: str) -> Iterator[str]:
    """Yield the documents of a file, "" for a row without text. Raises as `read_documents`.

    Args:
        how: of rows the key of the text, of plain text what is one document, as `data.article`.
    """
    if ending_of(address) not in PLAIN:
        for place, row in records.read_rows(address):
            yield text_of(row, place, text_key=how)
        return
    with addresses.open_text(address) as file:
        if how == "file":
            yield file.read(LONGEST + 1).replace("\r\n", "\n").replace("\r", "\n")
            return
        lines = (line.rstrip("\r\n") for line in file)
        if how == "line":
            yield from lines
        elif how == "blank_line":
            for is_blank, group in itertools.groupby(lines, key=lambda line: not line.strip()):
                if not is_blank:
                    yield "\n".join(group)
        else:
            number = int(how.removesuffix(" lines"))
            while group_of_lines := list(itertools.islice(lines, number)):
                yield "\n".join(group_of_lines)


def text_of(row: records.Row, place: str, text_key: str) -> str:
    """Return the text of a row; "" if it is null. Raises UserError if the row has no such text.

    Args:
        place: of the row, for messages.
    """
    if text_key not in row:
        raise UserError(
            f"no {text_key!r} (there: {', '.join(row):.200})",
            key=place,
            cure="name the text's key, as in data.text: {source: ..., text_key: body}",
        )
    text = "" if row[text_key] is None else row[text_key]
    if not isinstance(text, str):
        problem = f"its {text_key!r} is no text but {type(text).__name__}"
        raise UserError(problem, key=place, cure="convert it")
    return text


def read_documents(unit: Unit, skipped: Counter[str], strips: bool = False) -> Iterator[str]:
    """Yield the documents of a unit that are not blank; lone surrogates become U+FFFD.

    Args:
        skipped: counts what is left out, by the unit.
        strips: without the white space around them.

    Raises:
        UserError: a file is not what its ending says, a row has no text under the source's
            `text_key`, or a document has more than LONGEST characters.
        Unavailable: a server fails.
    """
    for text in unit.read():
        if len(text) > LONGEST:
            problem = f"a document of more than {LONGEST:,} characters"
            raise UserError(problem, key=unit.name, cure="cut it, or set data.article: 1000 lines")
        if not text or text.isspace():
            skipped[unit.name] += 1
            continue
        text = text.strip() if strips else text
        yield text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def is_held_out(document: str, share: float) -> bool:
    """Return whether a document is held out, by a hash of its text, so copies stay in one split.

    Args:
        share: fraction of the documents that are held out.
    """
    digest = hashlib.blake2b(document.encode(), digest_size=8).digest()
    return int.from_bytes(digest, byteorder="big") < share * 2**64


def byte_size(text: str) -> int:
    """Return the bytes of a text in UTF-8."""
    return len(text.encode())


def every(limit: int, size: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return a key for `itertools.groupby`: a group ends when its sizes are `limit` together."""
    total = 0

    def key(item: object) -> int:
        nonlocal total
        total += size(item)
        return (total - size(item)) // limit

    return key
