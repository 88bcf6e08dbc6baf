"""Sources that `data.text` and `data.documents` name, cut into the ranges that shards are made of.

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
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import botocore

from detalbert import hub
from detalbert.atomic import write_json
from detalbert.corpus import api_text, storage
from detalbert.errors import UserError
from detalbert.hub import looks_like_path
from detalbert.integrity import is_sealed, seal
from detalbert.processes import count_cores
from detalbert.squad import world
from detalbert.waiting import waiting

SUFFIXES = (".txt", ".jsonl", ".json")
_PACKED = tuple(f".jsonl{suffix}" for suffix in storage.CODECS)
_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, which JSON can hold and UTF-8 not
T = TypeVar("T")
_ROW_BYTES = 4_000  # of a hub document, on average, when its rows are shared out


class Part(NamedTuple):
    """A range of a source: documents whose lines begin in bytes begin..end (exclusive) of a file,
    or a hub's rows. The other forms can only be read whole.
    """

    form: str  # generated, botocore, hub, squad, document (a file is one), lines or jsonl
    address: str  # of `generated`: the split
    end: int
    size: int  # of the whole file, in bytes or rows; if packed, of its content
    begin: int = 0
    packed: int = 0  # bytes of a compressed file; 0: it is not compressed
    exact: bool = False  # white space at the ends of documents is kept

    @property
    def unit(self) -> int:
        """Approximate bytes per unit of `begin` and `end`."""
        return _ROW_BYTES if self.form == "hub" else 1

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of text."""
        return (self.end - self.begin) * self.unit


class Text(NamedTuple):
    """The text of one address: its files in order, and a fingerprint of the content."""

    parts: list[Part]
    fingerprint: str


def open_text(address: str, key: str, split: str, exact: bool = False) -> Text:
    """Return the text of `address`, none of it in memory; `exact` as for `data.documents`.

    Sizes of compressed files' content are not known yet: see `unpack_sizes`. Raises UserError,
    naming the config `key`, if the address has no text.
    """
    part = partial(Part, exact=exact)
    if address == "generated":
        stamp = hashlib.sha256("".join(_generated(split)).encode()).hexdigest()
        return Text([part("generated", split, 1, 1)], stamp)
    if address == "botocore":
        sizes = {str(path): path.stat().st_size for path in api_text.find_services()}
        parts = [part("botocore", path, size, size) for path, size in sizes.items()]
        return Text(parts, f"botocore {botocore.__version__}")
    suffixes = (*SUFFIXES, *storage.CODECS)
    if not storage.is_remote(address) and not looks_like_path(address, suffixes):
        rows = _hub(address, key)
        return Text([part("hub", address, len(rows), len(rows))], rows._fingerprint)
    files = storage.find_files(address, key, SUFFIXES + _PACKED if exact else SUFFIXES)
    facts = [(Path(file.address).name, file.size, file.stamp) for file in files]
    stamp = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return Text([_file_part(file, exact) for file in files], stamp)


def _file_part(file: storage.File, exact: bool) -> Part:
    if file.address.endswith(_PACKED):
        return Part("jsonl", file.address, 0, 0, packed=file.size, exact=exact)
    forms = {".json": "squad", ".jsonl": "jsonl"}
    form = forms.get(Path(file.address).suffix, "document" if exact else "lines")
    return Part(form, file.address, file.size, file.size, exact=exact)


def unpack_sizes(text: Text, folder: Path) -> list[Part]:
    """Return the files of `text` with uncompressed sizes, kept in a file in `folder`: measuring
    reads each compressed file once.
    """
    if not any(part.packed for part in text.parts):
        return text.parts
    path = folder / f"sizes-{text.fingerprint[:24]}.json"
    try:
        found = json.loads(path.read_text())
        if not is_sealed(found):
            raise ValueError
    except (FileNotFoundError, ValueError, AttributeError):
        found = {"sizes": _measure(text.parts)}
        write_json(path, seal(found))
    pairs = zip(text.parts, found["sizes"], strict=True)
    return [part._replace(end=size, size=size) for part, size in pairs]


def _measure(parts: list[Part]) -> list[int]:
    def measure(part: Part) -> int:
        packed = part.packed
        return sum(map(len, storage.unpack(part.address, packed))) if packed else part.size

    with ThreadPoolExecutor(count_cores()) as threads:  # decompression leaves the lock of Python
        sizes = threads.map(measure, parts)
        with waiting("measuring compressed text", len(parts), "files") as wait:
            return list(wait.each(sizes))


def cut_parts(parts: Iterable[Part], part_bytes: int) -> Iterator[Part]:
    """Yield `parts` cut into ranges of about `part_bytes` bytes, if they can be cut, in order."""
    for part in parts:
        if part.form in ("hub", "lines", "jsonl"):
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


class TextReader:
    """Reads parts. Consecutive ranges of a compressed file continue one stream; one that begins
    before it restarts at the file's first byte.
    """

    def __init__(self, count: Callable[[int], None] = lambda size: None) -> None:
        self.count = count
        self.stream, self.end = "", 0  # the compressed file that is read, and up to which byte
        self.at = 0  # the byte at which the next line of `file` begins
        self.file = storage.as_file(iter(()))

    def read(self, part: Part) -> Iterator[str]:
        """Yield the documents of `part` that are not empty; lone surrogates become U+FFFD. Raises
        UserError, naming file and byte, if one cannot be read.
        """
        done = 0
        for text in self._documents(part):
            self.count(len(text))
            done += len(text)
            text = text if text.isascii() else _SURROGATE.sub("\ufffd", text)
            if text := text if part.exact else text.strip():
                yield text
        self.count(part.text_bytes - done)

    def _documents(self, part: Part) -> Iterable[str]:
        if part.form == "generated":
            return _generated(part.address)
        if part.form == "botocore":
            return api_text.read_service(Path(part.address))
        if part.form == "hub":
            rows = _hub(part.address, "data.text")
            return (rows[number]["text"] or "" for number in range(part.begin, part.end))
        if part.form == "squad":
            return _squad_contexts(part)
        if part.form == "document":
            return [_decode(part, 0, b"".join(storage.read(part.address, 0, part.size)))]
        parse = _parse_line if part.form == "jsonl" else _decode
        return (parse(part, at, line) for at, line in self._lines(part))

    def _lines(self, part: Part) -> Iterator[tuple[int, bytes]]:
        """Yield (byte, line) of each line that begins in the part; the last may end after it."""
        if not part.packed or part.address != self.stream or part.begin < self.end:
            self._open(part)
        self.end = part.end
        while self.at < part.end and (line := self.file.readline()):
            at, self.at = self.at, self.at + len(line)
            if at >= part.begin:
                yield at, line.removesuffix(b"\n")

    def _open(self, part: Part) -> None:
        """Begin a stream, of a compressed file at its start. Else it begins a byte before the part,
        whose first line begins at `begin` only if a line end is there.
        """
        if part.packed:
            self.stream, self.at = part.address, 0
            blocks = storage.unpack(part.address, part.packed)
        else:
            self.stream, self.at = "", max(0, part.begin - 1)
            blocks = storage.read(part.address, self.at, part.size)
        self.file = storage.as_file(blocks)


def _generated(split: str) -> list[str]:
    return _contexts(world.generate(split, seed=1))


def _contexts(document: dict[str, Any]) -> list[str]:
    return [p["context"] for article in document["data"] for p in article["paragraphs"]]


def _squad_contexts(part: Part) -> list[str]:
    try:
        contexts = _contexts(json.loads(b"".join(storage.read(part.address, 0, part.size))))
        if not all(isinstance(context, str) for context in contexts):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            f"{part.address}: not JSON of SQuAD's shape (data > paragraphs > context); text may "
            "be .txt or .jsonl too"
        ) from None
    return contexts


def _parse_line(part: Part, at: int, line: bytes) -> str:
    content = _decode(part, at, line)
    if not content.strip():
        return ""
    try:
        text = json.loads(content)["text"]
        if not isinstance(text, str):
            raise TypeError("its 'text' is no text")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{part.address}: the line at byte {at} is not JSON with a 'text' ({error})"
        ) from None
    return text


def _decode(part: Part, at: int, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{part.address}: not UTF-8 at byte {at}; fix the file") from None


def _hub(address: str, key: str) -> Any:
    """Load the rows of a hub name, memory-mapped. Raises UserError if there is no "text" column."""
    import datasets

    name, _, config = address.partition(":")
    options = {"name": config or None, "split": "train"}
    with hub.hub_errors(f"{key}: {name!r} is not a file here, and the hub does not give it"):
        rows = hub.load_named(datasets.load_dataset, name, "dataset", **options)
    if "text" not in rows.column_names:
        raise UserError(f"{key}: {name!r} has no column 'text', but {', '.join(rows.column_names)}")
    return rows
