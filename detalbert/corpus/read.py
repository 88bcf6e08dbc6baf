"""Token shards: memory-mapped if they are on this machine, else fetched when they are needed."""

from functools import lru_cache
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.addresses import is_remote
from detalbert.corpus.index import fetch_files, read_index
from detalbert.errors import UserError, counted
from detalbert.settings.text import CorpusConfig
from detalbert.squad.encoding import tokenizer_sum
from detalbert.sums import find_damaged, json_sum


class Shards:
    """The shards of one split, by number.

    Args:
        address: a local or remote folder.
        split: train or validation.
        data: of the experiment.

    Raises:
        UserError: the folder has no such shards, is damaged, or has another format.
        Unavailable: a server fails.
    """

    kind = "documents"
    counts: tuple[str, ...] = "documents", "tokens"  # that describe a split
    column_names: tuple[str, ...] = "tokens", "document_ptr"

    def __init__(
        self,
        address: str,
        split: str,
        data: CorpusConfig,
    ) -> None:
        self.address = address
        self.split = split
        self.data = data
        self.index = read_index(address)
        if self.index["kind"] != self.kind:
            problem = f"{address}: holds {self.index['kind']}, and {self.kind} are wanted"
            raise UserError(
                problem,
                key="data.shards",
                cure="write shards for this workload",
            )
        if not is_remote(address):  # remote ones are checked when they are fetched
            sums = {Path(address, name): digest for name, digest in self.index["files"].items()}
            path = find_damaged(sums, stamps=Path(data.cache_dir))
            if path is not None:
                problem = "missing or not as it was written"
                raise UserError(
                    problem,
                    key=str(path),
                    cure="repeat the command that wrote it",
                )
        shards = self.index["shards"]
        self.shards = [shard for shard in shards if shard["name"].startswith(split)]
        # The sources, their numbers by shard, and their weights in training; no weights: all
        # windows once an epoch.
        self.names = list(dict.fromkeys(shard["source"] for shard in self.shards))
        self.sources = [self.names.index(shard["source"]) for shard in self.shards]
        self.weights = self._find_weights() if split == "train" else None
        cache = lru_cache(maxsize=2 * data.shuffle_shards + 1)  # older shards are not read again
        self.columns = cache(self._map)

    def _find_weights(self) -> list[float] | None:
        """Return the weights of the config, else of the index, by source; None without any."""
        weights = {source.name: source.weight for source in self.data.training if source.weight}
        weights = weights or self.index["weights"]
        for name in set(weights) - set(self.names):
            problem = f"source {name} has no text"
            raise UserError(
                problem,
                key=f"data.{self.data.source}",
                cure="leave it out",
            )
        return [weights[name] for name in self.names] if weights else None

    def count(self, name: str) -> int:
        """Return how many there are in all shards, of "tokens" for example."""
        return sum(shard[name] for shard in self.shards)

    def describe(self) -> str:
        """Return the split's counts in one line."""
        counts = ", ".join(f"{self.count(name):,} {name}" for name in self.counts)
        return f"{counts} in {counted(len(self.shards), 'shard')}"

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise UserError unless the shards were written with `tokenizer`."""
        if self.index["tokenizer"] != tokenizer_sum(tokenizer):
            problem = f"{self.data.tokenizer!r} is not that of the shards of {self.address}"
            raise UserError(
                problem,
                key="data.tokenizer",
                cure="give the one they were made with",
            )

    def fingerprint(self) -> str:
        """Return a SHA-256 that changes with the content of the shards."""
        files = self.index["files"].items()
        return json_sum([digest for name, digest in files if name.startswith(self.split)])

    def _map(self, number: int) -> dict[str, np.ndarray]:
        """Return the columns of a shard, memory-mapped; fetch it first if it is remote."""
        shard = self.shards[number]["name"]
        names = {column: f"{shard}.{column}.npy" for column in self.column_names}
        folder = fetch_files(
            self.address,
            self.index,
            list(names.values()),
            self.data.cache_dir,
        )
        return {column: np.load(folder / name, mmap_mode="r") for column, name in names.items()}


class Corpus(Shards):
    """The examples of one split, by number: text tokens and sentence lengths."""

    kind = "examples"
    counts = "documents", "sentences", "examples", "tokens"
    column_names = "tokens", "sentences", "token_ptr", "sentence_ptr"

    def __init__(
        self,
        address: str,
        split: str,
        data: CorpusConfig,
    ) -> None:
        super().__init__(address, split, data)
        # Lengths of all examples are in memory, four bytes for each: uint16 [E, 2], text tokens
        # and sentences of every example.
        names = [f"{shard['name']}.examples.npy" for shard in self.shards]
        folder = fetch_files(
            address,
            self.index,
            names,
            data.cache_dir,
        )
        tables = [np.load(folder / name) for name in names]
        self.table = np.concatenate([np.zeros((0, 2), dtype=np.uint16), *tables])
        # int64 [shards + 1]: the first example of every shard, and E.
        self.bounds = np.cumsum([0, *map(len, tables)])

    def shard_of(self, number: int) -> int:
        """Return the shard that holds an example."""
        return int(np.searchsorted(self.bounds, number, side="right")) - 1

    def example(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return text tokens int64 [T] and tokens per sentence int64 [S] of one example."""
        shard = self.shard_of(number)
        columns = self.columns(shard)
        place = number - int(self.bounds[shard])  # within the shard
        tokens, sentences = (
            columns[name][slice(*columns[offsets][place : place + 2])].astype(np.int64)
            for name, offsets in (("tokens", "token_ptr"), ("sentences", "sentence_ptr"))
        )
        return tokens, sentences
