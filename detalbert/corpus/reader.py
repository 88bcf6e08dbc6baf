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


class Shards:
    """The shards of one split, by number; `address` is a local or remote folder.

    Raises UserError if the folder has no such shards, is damaged, or has another format.
    """

    kind = "documents"
    described: tuple[str, ...] = "documents", "tokens"

    def __init__(self, address: str, split: str, data: CorpusConfig) -> None:
        self.address, self.split, self.data = address, split, data
        self.index = read_index(address)
        if (found := self.index.get("kind", "examples")) != self.kind:
            said = f"holds {found}, and {self.kind} are wanted; write shards for this workload"
            raise UserError(f"data.shards: {address}: {said}")
        self.facts = self.index["splits"][split]
        self.shards: list[dict[str, Any]] = self.facts["shards"]
        self.counts: dict[str, int] = self.facts["counts"]
        names = [shard.get("source", "") for shard in self.shards]
        self.names = list(dict.fromkeys(names))  # of the sources
        self.sources = [self.names.index(name) for name in names]  # of each shard
        # Of each source in training; None: all windows once an epoch.
        self.weights = self._find_weights() if split == "train" else None
        self.remote, self.folder = storage.is_remote(address), Path(address)  # of the files here
        if self.remote:
            key = hashlib.sha256(json.dumps([address, self.index["text"]]).encode()).hexdigest()
            self.folder = Path(data.cache_dir) / f"fetched-{key[:24]}"
        self._columns = lru_cache(2 * data.shuffle_shards + 1)(self._map)  # the others are over
        self._prefetched: list[int] = []  # the last ones
        if not self.remote:
            self._check_files()

    def _find_weights(self) -> list[float] | None:
        known = {one.name: one.weight for one in self.data.training if one.weight}
        known = known or self.index.get("weights") or {}
        if empty := sorted(set(known) - set(self.names)):
            raise UserError(f"data.{self.data.source}: source {empty[0]} has no text; leave it out")
        return [known[name] for name in self.names] if known else None

    def describe(self) -> str:
        """Return the split's counts in one line."""
        counts = ", ".join(f"{self.counts[name]:,} {name}" for name in self.described)
        said = {"line": "a line", "file": "a file", "blank_line": "what blank lines enclose"}
        article = self.index.get("article", "")
        article = said.get(article, article)
        told = f" (a document of plain text is {article})" if article else ""
        return f"{counts} in {len(self.shards)} shard(s){told}"

    def describe_sources(self, windows: np.ndarray) -> dict[str, str]:
        """Return a line for each of several sources: its share of an epoch, which has as many
        windows as all have (`windows`: of each shard), and how often its text is read in that.
        """
        sizes = np.bincount(self.sources, windows, len(self.names)).astype(int).tolist()
        weights = self.weights or sizes
        lines = {}
        for name, weight, size in zip(self.names, weights, sizes, strict=True):
            share = weight / sum(weights)
            percent = _decimals(100 * share, 1)
            times = _decimals(share * sum(sizes) / size, 2)
            lines[f"- {name}"] = f"{percent}% of an epoch, its {size:,} windows {times} times"
        return lines if len(lines) > 1 else {}

    def weights_by_name(self) -> dict[str, Any]:
        """Return the weights by name under "data.weights"; {} without any."""
        if self.weights is None:
            return {}
        return {"data.weights": dict(zip(self.names, self.weights, strict=True))}

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise UserError unless the shards were written with `tokenizer`."""
        if self.index["tokenizer"] != tokenizer_sum(tokenizer):
            said = f"not the one that the shards of {self.address} were written with"
            raise UserError(f"data.tokenizer: {self.data.tokenizer!r} is {said}; give that one")

    def fingerprint(self) -> str:
        """Return the SHA-256 of the shards' checksums."""
        sums = [shard["sha256"] for shard in self.shards]
        return hashlib.sha256(json.dumps(sums).encode()).hexdigest()

    def columns(self, shard: int) -> dict[str, np.ndarray]:
        """Return the arrays of a shard, memory-mapped; download it first if it is remote."""
        return self._columns(shard)

    def _map(self, shard: int) -> dict[str, np.ndarray]:
        columns = self.shards[shard]["columns"]
        while True:
            path = self.fetch(shard)
            try:
                return {
                    name: np.memmap(path, dtype, "r", at, (n,)) if n else np.zeros(0, dtype)
                    for name, (dtype, at, n) in columns.items()
                }
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
        address, digest = storage.join(self.address, facts["name"]), hashlib.sha256()
        with whole_file(path, binary=True) as file:
            for block in storage.read(address, 0, facts["bytes"]):
                digest.update(block)
                file.write(block)
            if digest.hexdigest() != facts["sha256"]:
                said = "not the bytes that were written there; upload it again"
                raise UserError(f"{address}: {said}")

    def _evict(self, newest: Path) -> None:
        """Remove the least recently used shards. A mapped one stays readable."""
        files = []
        for path in self.folder.glob("*.bin"):
            with contextlib.suppress(FileNotFoundError):  # evicted by another thread or process
                files.append((path.stat().st_atime, path.stat().st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self.data.cache_gib * 2**30 or path == newest:
                break
            total -= size
            path.unlink(missing_ok=True)

    def _check_files(self) -> None:
        sums = file_sums(self.folder, self.index)
        if damaged := find_damaged(sums, self.folder, Path(self.data.cache_dir)):
            cure = "copy it there again, or repeat the command that wrote it"
            raise UserError(f"{damaged[0]}: missing or not as it was written; {cure}")


class Corpus(Shards):
    """The examples of one split, by number: text tokens and sentence lengths."""

    data: TextConfig
    kind = "examples"
    described = "documents", "sentences", "examples", "tokens"

    def __init__(self, address: str, split: str, data: TextConfig) -> None:
        super().__init__(address, split, data)
        table = storage.read_all(storage.join(address, f"{split}-lengths.npy"))
        if hashlib.sha256(table).hexdigest() != self.facts["lengths_sha256"]:
            raise UserError(f"{address}: {split}-lengths.npy is not as it was written; write again")
        # uint16 [E, 2]: text tokens and sentences of every example.
        self.table = np.load(io.BytesIO(table), allow_pickle=False)
        # int64 [shards + 1]: the first example of every shard, and E.
        self.bounds = np.cumsum([0, *(shard["examples"] for shard in self.shards)])

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
        at = number - int(self.bounds[shard])  # within the shard
        tokens = slice(*columns["token_ptr"][at : at + 2].tolist())
        sentences = slice(*columns["sentence_ptr"][at : at + 2].tolist())
        ids, lengths = columns["tokens"][tokens], columns["sentences"][sentences]
        return ids.astype(np.int64), lengths.astype(np.int64)


KINDS: dict[str, type[Shards]] = {kind.kind: kind for kind in (Shards, Corpus)}


def _decimals(value: float, decimals: int) -> str:
    """Return `value` with `decimals` decimals, or as many as show two digits of a small value."""
    if 0 < value < 1:
        decimals = max(decimals, 1 - math.floor(math.log10(value)))
    return f"{value:.{decimals}f}"
