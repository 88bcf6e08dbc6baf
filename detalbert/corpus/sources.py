"""Sources that `data.text` and `data.documents` name, cut into ranges for parallel processing.

| address | documents |
| --- | --- |
| `generated` | the passages of the embedded world, one document each |
| `botocore` | AWS's API reference, installed with Determined: see `api_text` |
| `*.txt` | `data.text`: one per line; `data.documents`: the file is one document |
| `*.jsonl` | one per line, under "text" |
| `*.jsonl.zst`, `*.jsonl.gz` | the same, compressed; for `data.documents` |
| `*.json` | a file of SQuAD's shape: its contexts, one document each |
| a folder, `s3://bucket/prefix`, any address that fsspec knows | all such files, by name |
| `NAME`, `NAME@REVISION`, `NAME:CONFIG` | the "text" column of a hub data set's train split |
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import botocore
from tqdm import tqdm

from detalbert import hub
from detalbert.corpus import api_text, packed, storage
from detalbert.corpus.storage import File
from detalbert.errors import UserError, first_line
from detalbert.hub import hub_error, looks_like_path
from detalbert.processes import count_cores
from detalbert.squad import world

SUFFIXES = (".txt", ".jsonl", ".json")
_PACKED = tuple(f".jsonl{suffix}" for suffix in packed.CODECS)
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 not
ROW_CHARACTERS = 4_000  # characters of a hub document, on average, when its rows are shared out


class Part(NamedTuple):
    """Documents whose lines begin in bytes begin..end (exclusive) of a file, or a hub's rows."""

    address: str
    begin: int
    end: int
    size: int  # of the whole file, in bytes or rows
    whole: bool = False  # the file is one document
    packed: int = 0  # bytes of a compressed file; the others count what is in it. 0: it is not

    @property
    def unit(self) -> int:
        """Approximate bytes per unit of `begin` and `end`."""
        return ROW_CHARACTERS if self.address.startswith("hub:") else 1

    @property
    def stream(self) -> str:
        """The compressed file of which this is a range, best read in order; else ""."""
        return self.address if self.packed and self.end - self.begin < self.size else ""


class Text(NamedTuple):
    """The text of one address: its ranges in order, and a fingerprint of the content."""

    parts: list[Part]
    fingerprint: str


def open_text(address: str, key: str, part_bytes: int, split: str) -> Text:
    """Return the text of `address` in ranges of about `part_bytes` bytes, none of it in memory.
    Raises UserError, naming the config `key`, if the address has no text.
    """
    parts, stamp = _open(address, key, split, SUFFIXES, _lines_part)
    return Text(list(cut_parts(parts, part_bytes)), stamp)


def open_documents(address: str, key: str, split: str) -> Text:
    """Return the text of `address` in whole files for `read_exact`, none of it in memory.

    Sizes of compressed files' content are not known yet: see `unpack_sizes`. Raises UserError,
    naming the config `key`, if the address has no text.
    """
    return _open(address, key, split, SUFFIXES + _PACKED, _documents_part)


def _lines_part(file: File) -> Part:
    return Part(file.address, 0, file.size, file.size)


def _documents_part(file: File) -> Part:
    if file.address.endswith(_PACKED):
        return Part(file.address, 0, 0, 0, packed=file.size)
    return _lines_part(file)._replace(whole=not file.address.endswith((".json", ".jsonl")))


def _open(
    address: str, key: str, split: str, suffixes: tuple[str, ...], part_of: Callable[[File], Part]
) -> Text:
    """Return the text in whole files, or as the rows of a hub data set."""
    if address == "generated":
        stamp = hashlib.sha256("".join(_generated(split)).encode()).hexdigest()
        return Text([Part(f"generated:{split}", 0, 1, 1)], stamp)
    if address == "botocore":
        files = [File(str(path), path.stat().st_size, "") for path in api_text.find_services()]
        parts = [Part(f"botocore:{file.address}", 0, file.size, file.size) for file in files]
        return Text(parts, f"botocore {botocore.__version__}")
    if not storage.is_remote(address) and not looks_like_path(address, (*SUFFIXES, *packed.CODECS)):
        rows = _hub(address, key)
        return Text([Part(f"hub:{address}", 0, len(rows), len(rows))], rows._fingerprint)
    files = storage.find_files(address, key, suffixes)
    facts = [(Path(file.address).name, file.size, file.stamp) for file in files]
    stamp = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return Text(list(map(part_of, files)), stamp)


def unpack_sizes(parts: list[Part]) -> list[Part]:
    """Return `parts`, whole files, with uncompressed sizes; reads each compressed file once."""
    if not any(part.packed for part in parts):
        return parts
    with ThreadPoolExecutor(count_cores()) as threads:  # decompression leaves the lock of Python
        sizes = threads.map(_unpack_size, parts)
        shown: dict[str, Any] = {"total": len(parts), "unit": " files", "file": sys.stderr}
        return list(tqdm(sizes, desc="sizes of compressed files", disable=None, **shown))


def _unpack_size(part: Part) -> Part:
    if not part.packed:
        return part
    size = packed.count_bytes(part.address, part.packed)
    return part._replace(end=size, size=size)


def cut_parts(parts: Iterable[Part], part_bytes: int) -> Iterator[Part]:
    """Yield `parts` cut into ranges of about `part_bytes` bytes, in order."""
    for part in parts:
        yield from cut_part(part, max(1, part_bytes // part.unit))


def cut_part(part: Part, step: int) -> list[Part]:
    """Cut `part` into ranges of `step` bytes or rows. JSON files, single documents, services and
    the generated world can only be read whole, so they are not cut.
    """
    one = part.whole or part.address.endswith(".json")
    if one or part.address.startswith(("generated:", "botocore:")):
        return [part]
    begins = range(part.begin, part.end, step)
    return [part._replace(begin=begin, end=min(part.end, begin + step)) for begin in begins]


def size_of(parts: Iterable[Part]) -> int:
    """Return the approximate bytes of text."""
    return sum((part.end - part.begin) * part.unit for part in parts)


def group_parts(parts: list[Part], part_bytes: int) -> list[tuple[Part, ...]]:
    """Join neighbours to groups of at least `part_bytes` bytes: many small files make one job."""
    groups: list[list[Part]] = []
    size = part_bytes
    for part in parts:
        if size >= part_bytes:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += size_of((part,))
    return [tuple(group) for group in groups]


def read_documents(part: Part) -> Iterator[tuple[str, int]]:
    """Yield (text, bytes read for it) of each document of `part`, stripped; skip empty ones. Raises
    UserError, naming file and byte, if one cannot be read.
    """
    for text, size in read_exact(part):
        text = text.strip()
        if text:
            yield text, size


def read_exact(part: Part) -> Iterator[tuple[str, int]]:
    """Yield documents as `read_documents` does, but unstripped; lone surrogates become U+FFFD."""
    found: Iterable[tuple[str, int]]
    if part.address.startswith("generated:"):
        found = ((text, len(text)) for text in _generated(part.address.split(":")[1]))
    elif part.address.startswith("botocore:"):
        texts = api_text.read_service(Path(part.address.removeprefix("botocore:")))
        found = ((text, part.size // len(texts)) for text in texts)
    elif part.address.startswith("hub:"):
        found = _hub_documents(part)
    elif part.address.endswith(".json"):
        found = _squad_contexts(part)
    elif part.whole:
        content = storage.read_all(part.address)
        found = [(_decode(part, 0, content), len(content))]
    else:
        found = _line_documents(part)
    for text, size in found:
        if text:
            yield text if text.isascii() else _SURROGATE.sub("\ufffd", text), size


def _generated(split: str) -> list[str]:
    return _contexts(world.generate(split, seed=1))


def _contexts(document: dict[str, Any]) -> list[str]:
    return [p["context"] for article in document["data"] for p in article["paragraphs"]]


def _squad_contexts(part: Part) -> Iterator[tuple[str, int]]:
    try:
        contexts = _contexts(json.loads(storage.read_all(part.address)))
        if not all(isinstance(context, str) for context in contexts):
            raise TypeError
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{part.address}: not JSON of SQuAD's shape (data > paragraphs > context); text may "
            "be .txt or .jsonl too"
        ) from None
    each = part.size // max(1, len(contexts))
    yield from ((context, each) for context in contexts)


def _line_documents(part: Part) -> Iterator[tuple[str, int]]:
    jsonl = part.address.endswith((".jsonl", *_PACKED))
    for at, line in _lines(part):
        text = _decode(part, at, line)
        if jsonl:
            if not text.strip():
                continue
            try:
                text = json.loads(text)["text"]
                if not isinstance(text, str):
                    raise TypeError("its 'text' is no text")
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(
                    f"{part.address}: the line at byte {at} is not JSON with a 'text' ({error})"
                ) from None
        yield text, len(line)


def _decode(part: Part, at: int, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{part.address}: not UTF-8 at byte {at}; fix the file") from None


def _lines(part: Part) -> Iterator[tuple[int, bytes]]:
    """Yield (byte, line) of each line that begins in the part; the last may end after it."""
    first = max(0, part.begin - 1)  # a line begins at `begin` only if a line end is before it
    at, rest = first, b""
    skip = part.begin > 0
    if part.packed:
        blocks = packed.read(part.address, part.packed, first, keep=part.end - 1)
    else:
        blocks = storage.read(part.address, first, part.size)
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            begins, at = at, at + len(line) + 1
            if skip:
                skip = False
            elif begins < part.end:
                yield begins, line
        if at >= part.end:
            return
    if rest and not skip and at < part.end:
        yield at, rest


def _hub(address: str, key: str) -> Any:
    """Load the rows of a hub name, memory-mapped. Raises UserError if there is no "text" column."""
    import datasets

    name, _, config = address.partition(":")
    try:
        rows = hub.load_named(
            datasets.load_dataset, name, "dataset", name=config or None, split="train"
        )
    except Exception as error:  # whatever HTTP, the hub's client and the builders raise
        raise hub_error(error)(
            f"{key}: {name!r} is not a file here, and the hub does not give it: {first_line(error)}"
        ) from None
    if "text" not in rows.column_names:
        raise UserError(f"{key}: {name!r} has no column 'text', but {', '.join(rows.column_names)}")
    return rows


def _hub_documents(part: Part) -> Iterator[tuple[str, int]]:
    rows = _hub(part.address[len("hub:") :], "data.text")
    for number in range(part.begin, part.end):
        yield rows[number]["text"] or "", 1
