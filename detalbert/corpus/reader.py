"""Token shards: memory-mapped if they are on this machine, else read through a cache.

Every machine checks the SHA-256 of shards when it first reads them. The cache is a folder shared by
all ranks of a machine. A shard is downloaded once, atomically; beyond `data.cache_gib` the least
recently used ones are removed.
"""

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import threading
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.atomic import CACHE_CURE, alone, whole_file, writing
from detalbert.corpus.index import read_index
from detalbert.corpus.shards import file_sums
from detalbert.errors import UserError
from detalbert.integrity import find_damaged
from detalbert.reading import storage
from detalbert.settings.text import CorpusConfig, TextConfig
from detalbert.squad.encoding import tokenizer_sum

log = logging.getLogger(__name__)
_ARTICLES = {"line": "a line", "file": "a file", "blank_line": "what blank lines enclose"}


class Shards:
    """The shards of one split, by number; `address` is a local or remote folder.

    Raises UserError if the folder has no such shards, is damaged, or has another format.
    """

    kind = "documents"
    described: tuple[str, ...] = "documents", "tokens"

    def __init__(self, address: str, split: str, data: CorpusConfig) -> None:
        self.address = address
        self.split = split
        self.data = data
        self.index = read_index(address)
        kind = self.index.get("kind", "examples")
        if kind != self.kind:
            problem = f"holds {kind}, and {self.kind} are wanted; write shards for this workload"
            raise UserError(f"data.shards: {address}: {problem}")
        self.facts = self.index["splits"][split]
        self.shards: list[dict[str, Any]] = self.facts["shards"]
        self.counts: dict[str, int] = self.facts["counts"]
        names = [shard.get("source", "") for shard in self.shards]
        self.names = list(dict.fromkeys(names))  # of the sources
        self.sources = [self.names.index(name) for name in names]  # of each shard
        # Of each source in training; None: all windows once an epoch.
        self.weights = self._find_weights() if split == "train" else None
        self.remote = storage.is_remote(address)
        self.folder = Path(address)  # of the files here
        if self.remote:
            key = _json_sum([address, self.index["text"]])
            self.folder = Path(data.cache_dir) / f"fetched-{key[:24]}"
        self._columns = lru_cache(2 * data.shuffle_shards + 1)(self._map)  # the others are over
        self._prefetched: list[int] = []  # the last ones
        if not self.remote:
            self._check_files()

    def _find_weights(self) -> list[float] | None:
        """Return the weights of the config, else of the index, by source; None without any."""
        weights = {source.name: source.weight for source in self.data.training if source.weight}
        if not weights:
            weights = self.index.get("weights") or {}
        empty = sorted(weights.keys() - set(self.names))
        if empty:
            raise UserError(
                f"source {empty[0]} has no text",
                key=f"data.{self.data.source}",
                cure="leave it out",
            )
        return [weights[name] for name in self.names] if weights else None

    def describe(self) -> str:
        """Return the split's counts in one line."""
        counts = [f"{self.counts[name]:,} {name}" for name in self.described]
        text = f"{', '.join(counts)} in {len(self.shards)} shard(s)"
        article = self.index.get("article", "")
        if article:
            article = _ARTICLES.get(article, article)
            text += f" (a document of plain text is {article})"
        return text

    def describe_sources(self, windows: np.ndarray) -> dict[str, str]:
        """Return a line for each of several sources: its share of an epoch, which has as many
        windows as all have (`windows`: of each shard), and how often its text is read in that.
        """
        if len(self.names) < 2:
            return {}
        totals = np.bincount(self.sources, weights=windows, minlength=len(self.names))
        sizes = totals.astype(int).tolist()
        weights = self.weights or sizes
        lines = {}
        for name, weight, size in zip(self.names, weights, sizes, strict=True):
            share = weight / sum(weights)
            percent = _decimals(100 * share, 1)
            times = _decimals(share * sum(sizes) / size, 2)
            lines[f"- {name}"] = f"{percent}% of an epoch, its {size:,} windows {times} times"
        return lines

    def weights_by_name(self) -> dict[str, Any]:
        """Return the weights by name under "data.weights"; {} without any."""
        if self.weights is None:
            return {}
        return {"data.weights": dict(zip(self.names, self.weights, strict=True))}

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise UserError unless the shards were written with `tokenizer`."""
        if self.index["tokenizer"] != tokenizer_sum(tokenizer):
            raise UserError(
                f"data.tokenizer: {self.data.tokenizer!r} is not the one that the shards of "
                f"{self.address} were written with; give that one"
            )

    def fingerprint(self) -> str:
        """Return the SHA-256 of the shards' checksums."""
        return _json_sum([shard["sha256"] for shard in self.shards])

    def columns(self, shard: int) -> dict[str, np.ndarray]:
        """Return the arrays of a shard, memory-mapped; download it first if it is remote."""
        return self._columns(shard)

    def _map(self, shard: int) -> dict[str, np.ndarray]:
        columns = self.shards[shard]["columns"]
        while True:
            path = self.fetch(shard)
            try:
                return {name: _map_column(path, *place) for name, place in columns.items()}
            except FileNotFoundError:
                if not self.remote:
                    raise
                # A thread or process that fetched another shard has evicted this one meanwhile.

    def fetch(self, shard: int) -> Path:
        """Return the local file of a shard. Raises UserError if it cannot be downloaded."""
        facts = self.shards[shard]
        path = self.folder / facts["name"]
        if not self.remote:
            return path
        sums = {path: facts["sha256"]}
        if find_damaged(sums, self.folder):  # or not there
            cure = f"{CACHE_CURE} or data.cache_gib"
            with writing(self.folder, cure, "the shard cache"), alone(path):
                if find_damaged(sums, self.folder):
                    if path.exists():
                        log.warning("%s: not as it was written; fetching it again", path)
                    self._download(facts, path)
                    self._evict(path)
        with contextlib.suppress(OSError):  # for _evict: it is in use
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return path

    def prefetch(self, shards: list[int]) -> None:
        """Download remote shards in the background, in order, unless the last call named the same;
        `fetch` retries those that fail.
        """
        if not self.remote or shards == self._prefetched:
            return
        self._prefetched = shards

        def work() -> None:
            for shard in shards:
                with contextlib.suppress(Exception):
                    self.fetch(shard)

        threading.Thread(target=work, daemon=True).start()

    def _download(self, facts: dict[str, Any], path: Path) -> None:
        address = storage.join(self.address, facts["name"])
        digest = hashlib.sha256()
        with whole_file(path, binary=True) as file:
            for block in storage.read(address, 0, facts["bytes"]):
                digest.update(block)
                file.write(block)
            if digest.hexdigest() != facts["sha256"]:
                problem = "not the bytes that were written there; upload it again"
                raise UserError(f"{address}: {problem}")

    def _evict(self, newest: Path) -> None:
        """Remove the least recently used shards. A mapped one stays readable."""
        files = []
        for path in self.folder.glob("*.bin"):
            with contextlib.suppress(FileNotFoundError):  # evicted by another thread or process
                status = path.stat()
                files.append((status.st_atime, status.st_size, path))
        limit = self.data.cache_gib * 2**30
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= limit or path == newest:
                break
            total -= size
            path.unlink(missing_ok=True)

    def _check_files(self) -> None:
        """Raise UserError if a file is not as it was written."""
        sums = file_sums(self.folder, self.index)
        damaged = find_damaged(sums, self.folder, Path(self.data.cache_dir))
        if damaged:
            cure = "copy it there again, or repeat the command that wrote it"
            raise UserError(f"{damaged[0]}: missing or not as it was written; {cure}")


class Corpus(Shards):
    """The examples of one split, by number: text tokens and sentence lengths."""

    data: TextConfig
    kind = "examples"
    described = "documents", "sentences", "examples", "tokens"

    def __init__(self, address: str, split: str, data: TextConfig) -> None:
        super().__init__(address, split, data)
        name = f"{split}-lengths.npy"
        table = storage.read_all(storage.join(address, name))
        if hashlib.sha256(table).hexdigest() != self.facts["lengths_sha256"]:
            raise UserError(f"{address}: {name} is not as it was written; write again")
        # uint16 [E, 2]: text tokens and sentences of every example.
        self.table = np.load(io.BytesIO(table), allow_pickle=False)
        # int64 [shards + 1]: the first example of every shard, and E.
        counts = [shard["examples"] for shard in self.shards]
        self.bounds = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return len(self.table)

    def shard_of(self, number: int) -> int:
        """Return the shard that holds an example."""
        return int(np.searchsorted(self.bounds, number, side="right")) - 1

    def source_of(self, number: int) -> int:
        """Return the source of an example."""
        return self.sources[self.shard_of(number)]

    def example(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return text tokens int64 [T] and tokens per sentence int64 [S] of one example."""
        shard = self.shard_of(number)
        columns = self.columns(shard)
        place = number - int(self.bounds[shard])  # within the shard
        bounds = slice(place, place + 2)
        begin, end = columns["token_ptr"][bounds].tolist()
        ids = columns["tokens"][begin:end]
        begin, end = columns["sentence_ptr"][bounds].tolist()
        lengths = columns["sentences"][begin:end]
        return ids.astype(np.int64), lengths.astype(np.int64)


KINDS: dict[str, type[Shards]] = {Shards.kind: Shards, Corpus.kind: Corpus}


def _map_column(path: Path, dtype: str, begin: int, count: int) -> np.ndarray:
    """Return a column of a shard's file, memory-mapped."""
    if not count:
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, "r", offset=begin, shape=(count,))


def _json_sum(values: Any) -> str:
    text = json.dumps(values)
    return hashlib.sha256(text.encode()).hexdigest()


def _decimals(value: float, decimals: int) -> str:
    """Return `value` with `decimals` decimals, or as many as show two digits of a small value."""
    if 0 < value < 1:
        first_digit = -math.floor(math.log10(value))  # its place behind the point
        decimals = max(decimals, first_digit + 1)
    return f"{value:.{decimals}f}"
