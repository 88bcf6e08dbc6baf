"""What `data.text` may name, cut into parts that can be read apart from one another.

| address | documents |
| --- | --- |
| `generated` | the passages of the embedded world, one document each |
| `botocore` | AWS's API reference, which comes with Determined: see `api_text` |
| `*.txt` | one per line |
| `*.jsonl` | one per line, its "text" |
| `*.json` | a file of SQuAD's shape: its contexts, one document each |
| a folder, `s3://bucket/prefix`, any address of fsspec's | all such files below it, by name |
| `NAME`, `NAME:CONFIG` | the "text" column of a `datasets` hub name's train split |
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import botocore

from detalbert.corpus import api_text, storage
from detalbert.corpus.storage import File
from detalbert.errors import UserError, first_line
from detalbert.hub import hub_error, looks_like_path
from detalbert.squad import world

SUFFIXES = (".txt", ".jsonl", ".json")
ROW_CHARACTERS = 4_000  # characters of a hub document, on average, when its rows are shared out


class Span(NamedTuple):
    """The documents of a file whose line begins in bytes begin..end, or whose row is in there."""

    address: str
    begin: int
    end: int
    size: int  # of the whole file


class Text(NamedTuple):
    """All text of one address: its parts in order, and what changes when its content does."""

    name: str
    spans: list[Span]
    fingerprint: str


def open_text(address: str, key: str, part_bytes: int, split: str) -> Text:
    """The text of `address` in spans of about `part_bytes` bytes; nothing of it is kept.

    Raises UserError naming the config `key` for an address that gives no text.
    """
    if address == "generated":
        stamp = hashlib.sha256("".join(_generated(split)).encode()).hexdigest()
        return Text(address, [Span(f"generated:{split}", 0, 1, 1)], stamp)
    if address == "botocore":
        files = [File(str(path), path.stat().st_size, "") for path in api_text.find_services()]
        spans = [Span(f"botocore:{file.address}", 0, file.size, file.size) for file in files]
        return Text(address, spans, f"botocore {botocore.__version__}")
    if not storage.is_remote(address) and not looks_like_path(address, SUFFIXES):
        return _hub_text(address, key, part_bytes)
    files = storage.find_files(address, key, SUFFIXES)
    facts = [(Path(file.address).name, file.size, file.stamp) for file in files]
    stamp = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return Text(address, [span for file in files for span in _cut(file, part_bytes)], stamp)


def _cut(file: File, part_bytes: int) -> Iterator[Span]:
    if file.address.endswith(".json"):  # one JSON value: it is read whole
        yield Span(file.address, 0, file.size, file.size)
        return
    for begin in range(0, file.size, part_bytes):
        yield Span(file.address, begin, min(file.size, begin + part_bytes), file.size)


def documents(span: Span) -> Iterator[tuple[str, int]]:
    """(text, bytes read for it) of every document of `span`, in order; empty ones are left out.

    Raises UserError naming the file and the byte for one that cannot be read.
    """
    if span.address.startswith("generated:"):
        found = ((text, len(text)) for text in _generated(span.address.split(":")[1]))
    elif span.address.startswith("botocore:"):
        texts = api_text.read_service(Path(span.address.removeprefix("botocore:")))
        found = ((text, span.size // len(texts)) for text in texts)
    elif span.address.startswith("hub:"):
        found = _hub_documents(span)
    elif span.address.endswith(".json"):
        found = _squad_contexts(span)
    else:
        found = _line_documents(span)
    for text, size in found:
        text = text.strip()
        if text:
            yield text, size


def _generated(split: str) -> list[str]:
    return _contexts(world.generate(split, seed=1))


def _contexts(document: dict[str, Any]) -> list[str]:
    return [p["context"] for article in document["data"] for p in article["paragraphs"]]


def _squad_contexts(span: Span) -> Iterator[tuple[str, int]]:
    try:
        contexts = _contexts(json.loads(storage.read_all(span.address)))
        if not all(isinstance(context, str) for context in contexts):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{span.address}: not JSON of SQuAD's shape (data > paragraphs > context); text may "
            "be .txt or .jsonl too"
        ) from None
    each = span.size // max(1, len(contexts))
    yield from ((context, each) for context in contexts)


def _line_documents(span: Span) -> Iterator[tuple[str, int]]:
    jsonl = span.address.endswith(".jsonl")
    for at, line in _lines(span):
        try:
            text = line.decode("utf-8")
            if jsonl and text.strip():
                text = json.loads(text)["text"]
                if not isinstance(text, str):
                    raise TypeError("its 'text' is no text")
        except UnicodeDecodeError:
            raise UserError(f"{span.address}: not UTF-8 at byte {at}; mend the file") from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{span.address}: the line at byte {at} is not JSON with a 'text' ({error})"
            ) from None
        yield text, len(line)


def _lines(span: Span) -> Iterator[tuple[int, bytes]]:
    """(byte, line) of every line that begins in the span; the last may end behind it."""
    first = max(0, span.begin - 1)  # a line begins at `begin` only if a line end is before it
    at, rest = first, b""
    skip = span.begin > 0
    for block in storage.read(span.address, first, span.size):
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            begins, at = at, at + len(line) + 1
            if skip:
                skip = False
            elif begins < span.end:
                yield begins, line
        if at >= span.end:
            return
    if rest and not skip and at < span.end:
        yield at, rest


def _hub(address: str, key: str) -> Any:
    """The rows of a hub name, memory-mapped."""
    import datasets

    name, _, config = address.partition(":")
    try:
        rows = datasets.load_dataset(name, config or None, split="train")
    except Exception as error:  # whatever HTTP, the hub's client and the builders raise
        raise hub_error(error)(
            f"{key}: {name!r} is no file here, and the hub does not give it: {first_line(error)}"
        ) from None
    if "text" not in rows.column_names:
        raise UserError(f"{key}: {name!r} has no column 'text', but {', '.join(rows.column_names)}")
    return rows


def _hub_text(address: str, key: str, part_bytes: int) -> Text:
    rows = _hub(address, key)
    each = max(1, part_bytes // ROW_CHARACTERS)
    spans = [
        Span(f"hub:{address}", begin, min(len(rows), begin + each), len(rows))
        for begin in range(0, len(rows), each)
    ]
    return Text(address, spans, rows._fingerprint)


def _hub_documents(span: Span) -> Iterator[tuple[str, int]]:
    rows = _hub(span.address[len("hub:") :], "data.text")
    for number in range(span.begin, span.end):
        yield rows[number]["text"] or "", 1
