"""Windows from token shards: `length` + 1 tokens, and where documents end in them; order, loaders.

Windows are cut end to end through a shard, across documents. Window i of a shard holds its tokens i
* length .. (i + 1) * length: its last token, only a target, is the first input of the next, so
every token but the first of a shard is a target once. A shorter remainder is left out.

So nothing is padded and nothing is lost but a remainder per shard; the price is that most windows
begin inside a document, with less context than there is.
"""

import numpy as np
import torch
from torch.utils.data import Dataset

from detalbert.corpus.mixture import draw_windows
from detalbert.corpus.read import Shards
from detalbert.engine.loaders import RowLoader
from detalbert.engine.order import ShardOrder
from detalbert.errors import UserError
from lm.packed import CausalRow, pack


class LmWindows:
    """The windows of one split.

    Args:
        shards: token shards of the split.
        length: input tokens of a window.
        across_documents: a window is one segment; else attention and targets stay within a
            document.

    Raises:
        UserError: if the split, or a source of the training split, fills no window.
    """

    def __init__(self, shards: Shards, length: int, across_documents: bool = False) -> None:
        self.shards = shards
        self.length = length
        self.across_documents = across_documents
        tokens = np.array([shard["tokens"] for shard in shards.shards], np.int64)
        # The first token of a shard is no target.
        targets = np.maximum(tokens - 1, 0)
        self.counts = targets // length  # int64 [shards]: windows of each
        # int64 [shards + 1]: the first window of every shard, and the number of all.
        self.bounds = np.cumsum([0, *self.counts])
        self._check()

    def _check(self) -> None:
        """Raise UserError if the split, or a source of the training split, fills no window."""
        shards = self.shards
        window = f"no window of {self.length:,} + 1"
        if len(self) == 0:
            key = "data.documents"
            cure = "give more text, or lower hyperparameters.max_seq_length"
            if shards.split == "validation":
                key = "data.validation_documents"
                cure = "set it, or raise data.validation_fraction; if the text is one document, "
                cure += "set data.article, such as line"
            raise UserError(
                f"{shards.count('tokens'):,} tokens fill {window}",
                key=key,
                cure=cure,
            )
        # A source without a window could not be mixed in.
        by_source = np.bincount(shards.sources, weights=self.counts, minlength=len(shards.names))
        if shards.split == "train" and not by_source.all():
            raise UserError(
                f"source {shards.names[by_source.argmin()]} fills {window}",
                key="data.documents",
                cure="give it more text, or leave it out",
            )

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def describe(self) -> str:
        """Return the split's text and windows, for the log."""
        return f"{self.shards.describe()}, {len(self):,} windows of {self.length:,}"

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens, int64 [length + 1], and lengths of document segments, int64 [segments].

        Windows are numbered through all shards. Documents of 3 and 9 tokens: with a length of 4,
        window 0 has segments of 3 and 2, window 1 one of 5.
        """
        shard = int(np.searchsorted(self.bounds, number, side="right")) - 1
        columns = self.shards.columns(shard)
        begin = (number - int(self.bounds[shard])) * self.length
        end = begin + self.length + 1
        tokens = columns["tokens"][begin:end].astype(np.int64)  # [length + 1]
        cuts = np.zeros(0, np.int64)
        if not self.across_documents:
            # Documents that begin inside the window cut it there.
            starts = columns["document_ptr"]
            first, stop = np.searchsorted(starts, (begin + 1, end))
            cuts = starts[first:stop] - begin
        # From the window's begin to its first cut, and so on, [segments].
        segments = np.diff(cuts, prepend=0, append=len(tokens))
        return torch.from_numpy(tokens), torch.from_numpy(segments)

    def draw(self, limit: int | None) -> list[np.ndarray]:
        """Return the windows of each source that a validation takes, at most `limit` in all, int64
        [n] each.
        """
        sources = np.repeat(self.shards.sources, self.counts)  # of every window
        return draw_windows(sources, limit)

    def average_bytes(self) -> list[float]:
        """Return each source's mean bytes of text (UTF-8) per token of text."""
        # Every document has an end-of-text token, and what the tokenizer puts before a text.
        special = 1 + len(self.shards.index.get("begin_of_text", ()))
        sources = len(self.shards.names)
        text_bytes = np.zeros(sources)
        tokens = np.zeros(sources)
        for source, shard in zip(self.shards.sources, self.shards.shards, strict=True):
            text_bytes[source] += shard["text_bytes"]
            tokens[source] += shard["tokens"] - special * shard["documents"]
        return (text_bytes / np.maximum(tokens, 1)).tolist()


class WindowOrder(ShardOrder):
    """The windows of every step (ShardOrder), and of each of `ranks` data ranks."""

    def __init__(
        self, windows: LmWindows, global_batch_size: int, seed: int, ranks: int = 1
    ) -> None:
        shards = windows.shards
        super().__init__(
            windows.bounds,
            sources=shards.sources,
            weights=shards.weights,
            global_batch_size=global_batch_size,
            seed=seed,
            group=shards.data.shuffle_shards,
        )
        self.ranks = ranks

    def share(self, step: int, rank: int) -> np.ndarray:
        """Return every `ranks`-th of the windows of `step`, from `rank` on, int64 [n]. Data ranks'
        shares differ by at most one window.
        """
        return self.global_batch(step)[rank :: self.ranks, 1]


class WindowRows(Dataset):
    """Data set of row lists, indexed by the windows of a rank, int64 [n]."""

    def __init__(self, windows: LmWindows, max_tokens: int) -> None:
        self.windows = windows
        self.windows_per_row = max_tokens // windows.length

    def __getitem__(self, share: np.ndarray) -> list[CausalRow]:
        # As many windows in each row as fit.
        rows = []
        for start in range(0, len(share), self.windows_per_row):
            numbers = share[start : start + self.windows_per_row].tolist()
            rows.append(pack([self.windows[number] for number in numbers]))
        return rows


def validation_loader(
    windows: LmWindows, limit: int | None, rank: int, ranks: int, max_tokens: int
) -> tuple[RowLoader, list[int]]:
    """Return a loader of every `ranks`-th of the windows of `draw(limit)`, from `rank` on, row by
    row, source by source; and the source of each of its batches.

    Every rank gets the same number of batches, some of them empty, because the ranks of a sharded
    model must run equally often.
    """
    rows = WindowRows(windows, max_tokens)
    global_batch = rows.windows_per_row * ranks  # a row on each rank
    shares: list[np.ndarray] = []
    sources: list[int] = []
    for source, numbers in enumerate(windows.draw(limit)):
        for start in range(0, len(numbers), global_batch):
            batch = numbers[start : start + global_batch]
            shares.append(batch[rank::ranks])
            sources.append(source)  # of a batch: no batch has windows of two
    return RowLoader(rows, shares), sources
