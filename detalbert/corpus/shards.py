"""Token shards: what kinds there are, and their files. Each depends on the text of its job alone.

Documents become columns: `examples` for ALBERT, `documents` for a language model.
A job becomes `train-00007.bin` and, from held-out documents, `validation-00007.bin`; the record
`jobs/00007.json` is written last. A restart runs the jobs without a record and gives the same
bytes. After all jobs, `index.json` makes the folder a corpus (see `writer` and `reader`).
"""

import contextlib
import hashlib
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from detalbert import bucket
from detalbert.atomic import whole_file, write_json
from detalbert.corpus.blocks import Segments
from detalbert.corpus.words import WordEncoder
from detalbert.integrity import read_sealed, seal
from detalbert.reading import storage
from detalbert.squad.encoding import tokenizer_sum

FORMAT = 1  # raise it when the columns or their meaning change
RECORD = "jobs/{:05d}.json"
INDEX = "index.json"
PLAN = "plan.json"
SPLITS = ("train", "validation")
_ALIGNMENT = 64  # bytes; of columns
_SPOOLED = 1 << 20  # bytes of a column in memory, at most
# Regular expressions of the names of shards, and of all files that are written beside them.
SHARD = rf"({'|'.join(SPLITS)})-\d{{5,}}\.bin"
FILES = rf"{SHARD}|({'|'.join(SPLITS)})-lengths\.npy|(index|plan|sizes-[0-9a-f]{{24}})\.json"

OPEN, SENTENCE, DOCUMENT = range(3)  # what ends with a row of `Rows`
ShardFacts = dict[str, Any]  # of a shard: name, bytes, sha256, columns, and its counts by name


class Rows(NamedTuple):
    """Tokens of consecutive segments of a split. A row is a sentence of ALBERT's, or a segment of a
    language model's; the first may continue what the last one before it left open.
    """

    tokens: np.ndarray  # [N]
    lengths: np.ndarray  # int64 [R]: tokens per row
    ends: np.ndarray  # uint8 [R]: OPEN, SENTENCE, or DOCUMENT, which also ends a sentence
    text_bytes: int  # UTF-8


class Columns(ABC):
    """The columns of a shard besides its tokens, row after row, as documents end."""

    @abstractmethod
    def add(self, rows: Rows) -> tuple[dict[str, np.ndarray], dict[str, int]]:
        """Return the columns' next values, of all that ends in `rows`, and counts by name. Columns
        whose names end in _ptr hold lengths, which become offsets.
        """


class Kind(ABC):
    """A format of shards. `counts` are the names of the counts of its `Columns`."""

    counts: ClassVar[tuple[str, ...]]
    exact: ClassVar[bool]  # whether text is read unchanged: see `sources.Part`

    def facts(self, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        """Return all that a shard's bytes depend on besides its text."""
        return {"tokenizer": tokenizer_sum(tokenizer)}

    def backend(self, tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
        """Return the tokenizer that encodes the text, without truncation and padding."""
        return tokenizer.backend_tokenizer

    @abstractmethod
    def find_cut(self, text: str) -> int:
        """Return how many characters of a longer document's next `text` are a segment of it."""

    @abstractmethod
    def tokenize(self, encoder: WordEncoder, segments: Segments) -> Rows:
        """Tokenize at least one segment."""

    @abstractmethod
    def columns(self) -> Columns:
        """Return the columns of a new shard."""

    def describe(
        self, folder: Path, address: str, split: str, shards: list[ShardFacts]
    ) -> dict[str, str]:
        """Return additional facts on a split, whose shards are at `address`, for the index."""
        return {}


def is_held_out(text: str, share: float) -> bool:
    """Return whether a document is held out, by a hash of its text, so copies stay in one split."""
    if share in (0.0, 1.0):
        return bool(share)
    digest = new_hash()
    digest.update(text.encode("utf-8", "surrogatepass"))
    return is_low(digest, share)


def new_hash() -> hashlib.blake2b:
    """Return the hash of no text yet; its method `update` takes UTF-8."""
    return hashlib.blake2b(digest_size=8)


def is_low(digest: hashlib.blake2b, share: float) -> bool:
    """Return whether a `new_hash` is in the lowest fraction `share` of all that are possible."""
    return int.from_bytes(digest.digest(), byteorder="big") < share * 2**64


def read_record(
    folder: Path, number: int, sizes: Mapping[str, int]
) -> dict[str, ShardFacts] | None:
    """Return the facts on a job's shards, by split; None if it is to be done, or done again.
    `sizes` are those of all shards that are there, in bytes.
    """
    record = read_sealed(folder / RECORD.format(number))
    if record is None:
        return None
    shards = {}
    # A split without documents of the job has no shard.
    for split in SPLITS:
        if split not in record:
            continue
        shard = record[split]
        name = _shard_name(split, number)
        is_own = shard["name"] == name  # not another job's record
        if not is_own or sizes.get(name) != shard["bytes"]:
            return None
        shards[split] = shard
    return shards


def _shard_name(split: str, number: int) -> str:
    return f"{split}-{number:05d}.bin"


def file_sums(folder: Path, index: dict[str, Any]) -> dict[Path, str]:
    """Return the SHA-256 of each file that the index of shards in `folder` names."""
    sums: dict[Path, str] = {}
    for split, split_facts in index["splits"].items():
        for shard in split_facts["shards"]:
            path = folder / shard["name"]
            sums[path] = shard["sha256"]
        if "lengths_sha256" in split_facts:
            path = folder / f"{split}-lengths.npy"
            sums[path] = split_facts["lengths_sha256"]
    return sums


def write_job(
    folder: Path, number: int, kind: Kind, batches: Iterable[dict[str, Rows]]
) -> list[str]:
    """Write shards and record of a job from its rows, by split; return the shards' names."""
    with contextlib.ExitStack() as files:
        shards = {}
        for split in SPLITS:
            # A job may have documents of both splits; a file is there only if it has tokens.
            path = folder / _shard_name(split, number)
            shards[split] = _Shard(path, columns=kind.columns(), files=files)
        for batch in batches:
            for split, rows in batch.items():
                shards[split].add(rows)
        record = {split: shard.finish() for split, shard in shards.items() if shard.file}

    # The files have their names by now: the record says that they are complete.
    write_json(folder / RECORD.format(number), seal(record))
    return [shard["name"] for shard in record.values()]


class _Shard:
    """A shard that is written from its start to its end: tokens at once, and the other columns,
    which are short, behind the last of them. There is no file without tokens.
    """

    def __init__(self, path: Path, columns: Columns, files: contextlib.ExitStack) -> None:
        self.path = path
        self.columns = columns
        self.files = files
        self.sum = hashlib.sha256()
        self.file: BinaryIO | None = None
        self.stored: dict[str, _Column] = {}
        self.counts: Counter[str] = Counter()

    def add(self, rows: Rows) -> None:
        """Append segments."""
        if self.file is None and len(rows.tokens):
            self.file = self.files.enter_context(whole_file(self.path, binary=True))
            self.dtype = rows.tokens.dtype

        # Tokens at once; the other columns wait for the last of them.
        self._write(rows.tokens.tobytes())
        columns, counts = self.columns.add(rows)
        self.counts.update(counts)
        for name, values in columns.items():
            if name not in self.stored:
                self.stored[name] = _Column(
                    name,
                    dtype=values.dtype,
                    folder=self.path.parent,
                    files=self.files,
                )
            self.stored[name].add(values)

    def finish(self) -> ShardFacts:
        """Write the other columns, each at a multiple of _ALIGNMENT; return the shard's facts."""
        tokens = self.counts["tokens"]
        places = {"tokens": [self.dtype.str, 0, tokens]}  # dtype, first byte, number of values
        # Columns at multiples of 64 bytes can be memory-mapped as arrays of any type.
        end = tokens * self.dtype.itemsize
        for name, column in self.stored.items():
            padding = -end % _ALIGNMENT
            begin = end + padding
            self._write(bytes(padding))
            places[name] = [column.dtype.str, begin, column.count]
            end = begin + column.count * column.dtype.itemsize
            for block in column.read():
                self._write(block.tobytes())
        return {
            "name": self.path.name,
            "bytes": end,
            "sha256": self.sum.hexdigest(),
            **self.counts,
            "columns": places,
        }

    def _write(self, content: bytes) -> None:
        if self.file is not None:
            self.sum.update(content)
            self.file.write(content)


class _Column:
    """A column until its shard has all tokens: in memory, or in a temporary file if it is long.
    Lengths, in a column whose name ends in _ptr, are read as int64 offsets.
    """

    def __init__(
        self, name: str, dtype: np.dtype, folder: Path, files: contextlib.ExitStack
    ) -> None:
        self.is_offsets = name.endswith("_ptr")
        self.stored_as = dtype
        self.dtype = np.dtype(np.int64) if self.is_offsets else dtype
        self.count = 1 if self.is_offsets else 0  # offsets begin with a 0
        spooled = tempfile.SpooledTemporaryFile(max_size=_SPOOLED, dir=str(folder))  # noqa: SIM115
        self.file = files.enter_context(spooled)

    def add(self, values: np.ndarray) -> None:
        """Append values."""
        self.count += len(values)
        self.file.write(values.tobytes())

    def read(self) -> Iterator[np.ndarray]:
        """Yield the values in blocks."""
        if self.is_offsets:
            yield np.zeros(1, dtype=self.dtype)
        self.file.seek(0)
        total = 0  # of the lengths so far
        while content := self.file.read(_SPOOLED):
            values = np.frombuffer(content, dtype=self.stored_as)
            # Block by block, each from where the last one ended.
            if self.is_offsets:
                values = total + np.cumsum(values, dtype=self.dtype)
                total = int(values[-1])
            yield values


class ShardPart(NamedTuple):
    """Part `number` of `total`, from 1 on, of the jobs of a corpus that several machines write."""

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


class Target:
    """The place of shards. `folder` is where files are written; `remote`, if any, where they go
    then: what is there is known by its records (`jobs/`), which follow their shards. Several parts
    of a machine write to a remote place from folders of their own.
    """

    def __init__(self, address: str, cache_dir: str, part: "ShardPart | None" = None) -> None:
        self.remote: str | None = None
        self.folder = Path(address)
        self.address = str(self.folder)
        if bucket.is_bucket(address):
            key = hashlib.sha256(address.encode()).hexdigest()
            self.remote = address
            suffix = "" if part is None else f"-{part.number}-of-{part.total}"
            self.folder = Path(cache_dir) / f"writing-{key[:24]}{suffix}"
            self.address = address

    def open(self) -> None:
        """Fetch plan, records and index of what is there already."""
        if self.remote is None:
            return
        # Those that an earlier run left here may be older.
        for pattern in (PLAN, INDEX, "jobs/*.json"):
            for path in self.folder.glob(pattern):
                path.unlink()
        prefixes = (PLAN, INDEX, "jobs/")
        bucket.download(
            self.remote,
            self.folder,
            wanted=lambda name: name.startswith(prefixes),
        )

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the shards that are there, by name."""
        if self.remote is None:
            return {path.name: path.stat().st_size for path in self.folder.glob("*.bin")}
        prefix = storage.join(self.remote, "")
        sizes = {}
        for file in storage.list_files(self.remote, "--output"):
            name = file.address[len(prefix) :]
            if name.endswith(".bin"):
                sizes[name] = file.size
        return sizes

    def move(self, names: list[str], *last: str) -> None:
        """Upload files, those that make them count last; remove the others here."""
        if self.remote is None:
            return
        address = self.remote.rstrip("/")
        bucket.put(self.folder, address, names)
        bucket.put(self.folder, address, last)
        for name in names:
            (self.folder / name).unlink()
