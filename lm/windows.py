"""Windows from token shards: `length` + 1 tokens, and where documents end in them; their loaders.

Windows are cut end to end through a shard, across documents. Window i of a shard holds its tokens i
* length .. (i + 1) * length: its last token, only a target, is the first input of the next, so
every token but the first of a shard is a target once. A shorter remainder is left out, unless
`tails` are wanted: then it is a window.
"""

import numpy as np
import torch
from torch.utils.data import Dataset

from detalbert.corpus.mixture import draw_windows
from detalbert.corpus.reader import Shards
from detalbert.engine.loaders import RowLoader
from detalbert.errors import UserError
from lm.order import Share, WindowOrder
from lm.packed import CausalRow, pack


class LmWindows:
    """The windows of one split.

    `length` is in input tokens; with `across_documents` a window is one segment, else attention and
    targets stay within a document. With `tails` a shard's last window holds what is left of it.
    Raises UserError if the split fills no window.
    """

    def __init__(
        self, shards: Shards, length: int, across_documents: bool = False, tails: bool = False
    ) -> None:
        self.shards, self.length, self.across_documents = shards, length, across_documents
        tokens = np.array([shard["tokens"] for shard in shards.shards], np.int64)
        most = np.maximum(tokens - 1, 0) + (length - 1) * tails
        self.counts = most // length  # int64 [shards]: windows of each
        if not len(self):
            key, cure = "documents", "give more text, or lower hyperparameters.max_seq_length"
            if shards.split == "validation":
                key, cure = f"validation_{key}", f"{cure}, or raise data.validation_fraction"
            few = f"{shards.counts['tokens']:,} tokens fill no window of {length:,} + 1"
            raise UserError(f"data.{key}: {few}; {cure}")
        each = np.bincount(shards.sources, self.counts, len(shards.names))  # windows by source
        if shards.split == "train" and not each.all():
            few = f"source {shards.names[each.argmin()]} fills no window of {length:,} + 1"
            raise UserError(f"data.documents: {few}; give it more text, or leave it out")

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __getitem__(self, place: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens, int64 [length + 1], and lengths of document segments, int64 [segments]; in
        a tail there are fewer.

        `place` is (shard, window in it). Documents of 3 and 9 tokens: with a length of 4, window 0
        has segments of 3 and 2, window 1 one of 5.
        """
        columns, begin = self.shards.columns(int(place[0])), int(place[1]) * self.length
        tokens = columns["tokens"][begin : begin + self.length + 1].astype(np.int64)  # [length + 1]
        end = begin + len(tokens)
        cuts, ptr = np.zeros(0, np.int64), columns["document_ptr"]
        if not self.across_documents:
            cuts = ptr[slice(*np.searchsorted(ptr, (begin + 1, end)))] - begin  # inside the window
        pieces = np.diff(cuts, prepend=0, append=len(tokens))
        return torch.from_numpy(tokens), torch.from_numpy(pieces)

    def draw(self, limit: int | None) -> list[np.ndarray]:
        """Return (shard, window) of the windows of each source that a validation takes, at most
        `limit` in all, int64 [n, 2] each.
        """
        ends = np.cumsum(self.counts)
        places = []
        for numbers in draw_windows(np.repeat(self.shards.sources, self.counts), limit):
            shards = np.searchsorted(ends, numbers, side="right")
            places.append(np.stack([shards, numbers - (ends - self.counts)[shards]], axis=1))
        return places

    def average_bytes(self) -> list[float]:
        """Return each source's mean bytes of text (UTF-8) per token of text."""
        special = 1 + len(self.shards.index.get("begin_of_text", ()))  # of a document
        sizes = np.zeros((len(self.shards.names), 2))
        for source, shard in zip(self.shards.sources, self.shards.shards, strict=True):
            sizes[source] += shard["text_bytes"], shard["tokens"] - special * shard["documents"]
        text_bytes, tokens = sizes.T
        return (text_bytes / np.maximum(tokens, 1)).tolist()


class WindowRows(Dataset):
    """Data set of row lists, indexed by shares; prefetches remote shards in training."""

    def __init__(
        self, windows: LmWindows, max_tokens: int, order: WindowOrder | None = None
    ) -> None:
        self.windows, self.per_row, self.order = windows, max_tokens // windows.length, order

    def __getitem__(self, share: Share) -> list[CausalRow]:
        step, places = share
        if self.order and self.windows.shards.remote:
            self.windows.shards.prefetch(self.order.soon(step))
        groups = (places[i : i + self.per_row] for i in range(0, len(places), self.per_row))
        return [pack([self.windows[place] for place in group]) for group in groups]


def validation_loader(
    windows: LmWindows, limit: int | None, rank: int, ranks: int, max_tokens: int
) -> tuple[RowLoader, list[int]]:
    """Return a loader of every `ranks`-th of the windows of `draw(limit)`, from `rank` on, row by
    row, source by source; and the source of each of its batches.

    Every rank gets the same number of batches, some of them empty, because the ranks of a sharded
    model must run equally often.
    """
    rows, shares, sources = WindowRows(windows, max_tokens), list[Share](), list[int]()
    for source, places in enumerate(windows.draw(limit)):
        for start in range(0, len(places), rows.per_row * ranks):
            mine = places[start : start + rows.per_row * ranks][rank::ranks]
            shares.append((-1, mine))
            sources.append(source)
    return RowLoader(rows, shares), sources
