"""Windows from token shards: `length` + 1 tokens, and where documents end in them.

Windows are cut end to end through a shard, across documents. Window i of a shard holds its tokens i
* length .. (i + 1) * length: its last token, only a target, is the first input of the next, so
every token but the first of a shard is a target once. A remainder at a shard's end that is shorter
than a window is left out.
"""

from collections.abc import Iterator

import numpy as np
import torch

from detalbert.corpus.reader import Shards
from detalbert.errors import UserError


class Windows:
    """The windows of one split.

    `length` is in input tokens; with `across_documents` a window is one segment, else attention and
    targets stay within a document. Raises UserError if the split fills no window.
    """

    def __init__(self, shards: Shards, length: int, across_documents: bool = False) -> None:
        self.shards, self.length, self.across_documents = shards, length, across_documents
        tokens = np.array([shard["tokens"] for shard in shards.shards], np.int64)
        # int64 [shards]: windows of each.
        self.counts = np.maximum(tokens - 1, 0) // length
        if not len(self):
            raise UserError(_too_small(shards, length))

    def __len__(self) -> int:
        return int(self.counts.sum())

    def __getitem__(self, place: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens, int64 [length + 1], and lengths of document segments, int64 [segments].

        `place` is (shard, window in it). Documents of 3 and 9 tokens: with a length of 4, window 0
        has segments of 3 and 2, window 1 one of 5.
        """
        shard, number = int(place[0]), int(place[1])
        if not 0 <= number < self.counts[shard]:
            raise IndexError(f"window {number} of {self.counts[shard]} in shard {shard}")
        columns = self.shards.columns(shard)
        begin = number * self.length
        end = begin + self.length + 1
        tokens = columns["tokens"][begin:end].astype(np.int64)  # [length + 1]
        cuts = np.zeros(0, np.int64)
        if not self.across_documents:
            ptr = columns["document_ptr"]
            cuts = ptr[slice(*np.searchsorted(ptr, (begin + 1, end)))] - begin  # inside the window
        pieces = np.diff(cuts, prepend=0, append=self.length + 1)
        return torch.from_numpy(tokens), torch.from_numpy(pieces)

    def in_order(self, rank: int = 0, ranks: int = 1) -> Iterator[tuple[int, int]]:
        """Yield (shard, window) of every `ranks`-th window from `rank` on, in shard order."""
        before = 0
        for shard, count in enumerate(self.counts.tolist()):
            first = (rank - before) % ranks
            yield from ((shard, number) for number in range(first, count, ranks))
            before += count

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes of text (UTF-8) per token, counting end-of-text tokens. Nats per token / ln 2
        / this are bits per byte.
        """
        return self.shards.counts["text_bytes"] / self.shards.counts["tokens"]


def _too_small(shards: Shards, length: int) -> str:
    tokens, key = shards.counts["tokens"], "documents"
    cure = "give more text, or lower hyperparameters.max_seq_length"
    if shards.split == "validation":
        key, cure = "validation_documents", f"{cure}, or raise data.validation_fraction"
    return f"data.{key}: {tokens:,} tokens fill no window of {length:,} + 1; {cure}"
