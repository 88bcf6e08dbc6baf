"""Packed rows of examples: one or two segments, masked tokens, labels; and the order of training.

All depends only on (seed, epoch, number of the example), so any process can make any example.
"""

from typing import Any

import numpy as np
import torch

from detalbert.corpus.mixture import Mixture
from detalbert.corpus.reader import Corpus
from detalbert.engine.loaders import PackedRows
from detalbert.engine.order import TrainOrder, spread
from detalbert.engine.rows import SpanRow
from pretrain.hparams import PretrainHParams
from pretrain.masking import Vocabulary, choose_tokens, corrupt, find_words
from pretrain.spans import make_cloze

NO_LABEL = -100
_VALIDATION = 2**40  # the "epoch" of held-out examples: they are masked alike every time


class PretrainRow(SpanRow):
    """A row of examples with M of its T tokens masked; NO_LABEL for objectives an example lacks."""

    masked: torch.Tensor  # int64 [M], places of the hidden tokens in the row
    mlm_labels: torch.Tensor  # int64 [M], what they were
    sop_labels: torch.Tensor  # int64 [n], 0: segments as in the text, 1: swapped, NO_LABEL: no pair


class PretrainExamples:
    """The examples of a corpus as model inputs."""

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, hparams: PretrainHParams) -> None:
        self.corpus, self.vocabulary, self.hparams = corpus, vocabulary, hparams
        text, sentences = corpus.table.T.astype(np.int32)
        paired = (sentences > 1) & (hparams.sentence_order or hparams.span_fraction > 0)
        # int32 [E]: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]; a few fewer where spans are selected.
        self.lengths = text + 2 + paired

    def make(self, epoch: int, number: int) -> dict[str, Any]:
        """Return one example of T tokens, M of them masked.

        It has these columns of a `PretrainRow`: input_ids, token_type_ids, [T]; masked, mlm_labels,
        [M]; sop_labels, start_positions and end_positions, a number each, which may be NO_LABEL. If
        a span is to be selected, nothing is masked.
        """
        hparams = self.hparams
        rng = np.random.default_rng([hparams.known_seed, epoch, number])
        tokens, sentences = self.corpus.example(number)
        if hparams.span_fraction and rng.random() < hparams.span_fraction and len(sentences) > 1:
            cloze = make_cloze(tokens, sentences, self.vocabulary, rng)
            if cloze is not None:
                before = len(cloze.query) + 2 if cloze.first >= 0 else 1  # -1 + 1 is [CLS]
                first, last = cloze.first + before, cloze.last + before
                segments = [cloze.query, cloze.passage]
                return self._lay_out(segments, start_positions=first, end_positions=last)
        return self._hide(tokens, sentences, rng)

    def _hide(
        self, tokens: np.ndarray, sentences: np.ndarray, rng: np.random.Generator
    ) -> dict[str, Any]:
        """Return the example with masked tokens and, if it has two segments, their order."""
        hparams, segments, label = self.hparams, [tokens], NO_LABEL
        if hparams.sentence_order and len(sentences) > 1:
            cut = sentences[: rng.integers(1, len(sentences))].sum()
            segments, label = [tokens[:cut], tokens[cut:]], int(rng.random() < 0.5)
            segments = segments[::-1] if label else segments
        words = find_words(segments, self.vocabulary)
        chosen = choose_tokens(words, hparams.masked_fraction, hparams.max_ngram, rng)  # [M]
        text = np.concatenate(segments)  # [T - 2], or [T - 3] of two segments
        labels = text[chosen]  # [M]
        text[chosen] = corrupt(labels, self.vocabulary, rng)
        first = len(segments[0])
        return self._lay_out(
            [text[:first], text[first:]][: len(segments)],
            masked=chosen + 1 + (chosen >= first),
            mlm_labels=labels,
            sop_labels=label,
        )

    def _lay_out(self, segments: list[np.ndarray], **targets: Any) -> dict[str, Any]:
        """Return [CLS] A [SEP] or [CLS] A [SEP] B [SEP], and the other values of `make`."""
        parts: list[Any] = [[self.vocabulary.cls]]
        for segment in segments:
            parts += [segment, [self.vocabulary.sep]]
        ids = np.concatenate(parts)  # [T]
        types = np.zeros(len(ids), np.int64)
        types[len(segments[0]) + 2 :] = 1
        nothing = dict.fromkeys(("masked", "mlm_labels"), np.zeros(0, np.int64))
        no_labels = dict.fromkeys(("sop_labels", "start_positions", "end_positions"), NO_LABEL)
        return {"input_ids": ids, "token_type_ids": types, **nothing, **no_labels, **targets}

    def pack(self, tickets: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of a `PretrainRow` of the examples (epoch, number), int64 [n, 2]."""
        made = [self.make(epoch, number) for epoch, number in tickets.tolist()]
        lengths = [len(one["input_ids"]) for one in made]
        bounds = np.cumsum([0, *lengths])  # [n + 1]: each example's first token, and T
        for one, begin in zip(made, bounds, strict=False):
            one["masked"] = one["masked"] + begin
        return {
            **{name: np.hstack([one[name] for one in made]).astype(np.int64) for name in made[0]},
            "position_ids": np.concatenate([np.arange(length) for length in lengths]),
            "cu_seqlens": bounds.astype(np.int32),
            "windows": np.ascontiguousarray(tickets[:, 1]),
        }


class ExampleOrder(TrainOrder):
    """The examples of every step. An epoch reads the shards in a new order, `group` of them at a
    time, and mixes the examples of a group. So a machine needs at most two groups at once. Sources
    with weights are each read so, and dealt by `Mixture`.
    """

    def __init__(
        self, examples: PretrainExamples, global_batch_size: int, slots: int, seed: int, group: int
    ) -> None:
        super().__init__(examples.lengths, global_batch_size, slots, seed)
        corpus = self.corpus = examples.corpus
        self.group, weights = group, corpus.weights or [1.0]
        self.mixture, self.kept = Mixture(weights), dict[tuple[int, int], np.ndarray]()
        self.owners = np.array(corpus.sources if corpus.weights else [0] * len(corpus.shards))
        sizes = np.diff(corpus.bounds)
        self.sizes = np.bincount(self.owners, sizes, len(weights)).astype(np.int64)  # [S]

    def groups(self, epoch: int, source: int = 0) -> list[list[int]]:
        """Return the shards of an epoch of a source in reading order, as groups."""
        mine = np.flatnonzero(self.owners == source)
        rng = np.random.default_rng([self._seed(source), epoch, 1])
        shards = mine[rng.permutation(len(mine))]
        return [shards[i : i + self.group].tolist() for i in range(0, len(shards), self.group)]

    def permutation(self, epoch: int, source: int = 0) -> np.ndarray:
        """Return all example numbers of a source in the order of its `epoch`, int64 [E]. Those of
        two epochs of each source are kept: a step may need both.
        """
        if (source, epoch) not in self.kept:
            others = ((s, e) for s, e in self.kept if s != source or abs(e - epoch) == 1)
            self.kept = {key: self.kept[key] for key in others}
            rng = np.random.default_rng([self._seed(source), epoch])
            numbers = np.split(np.arange(len(self.corpus)), self.corpus.bounds[1:-1])  # by shard
            groups = ([numbers[shard] for shard in g] for g in self.groups(epoch, source))
            parts = [rng.permutation(np.concatenate(some)) for some in groups]
            self.kept[source, epoch] = np.concatenate(parts)
        return self.kept[source, epoch]

    def _seed(self, source: int) -> int:
        return self.seed + (source << 64)

    def tickets(self, step: int) -> np.ndarray:
        """Return (epoch of its source, number) of the examples of `step`, int64 [B, 2]."""
        first = step * self.global_batch_size
        owners, numbers = self.mixture.deal(first, self.global_batch_size)
        epochs, places = np.divmod(numbers, self.sizes[owners])
        found = np.stack([epochs, places], axis=1)
        for source, epoch in set(zip(owners.tolist(), epochs.tolist(), strict=True)):
            mine = (owners == source) & (epochs == epoch)
            found[mine, 1] = self.permutation(epoch, source)[places[mine]]
        return found

    def share(self, step: int, slot: int) -> np.ndarray:
        """Return the tickets of `step` for rank `slot`, int64 [n, 2]."""
        batch = self.tickets(step)
        shares = spread(self.lengths[batch[:, 1]], self.slots, room=len(batch) // self.slots)
        return batch[shares[slot]]

    def soon(self, epoch: int, number: int) -> list[int]:
        """Return the shards of the group of example `number` of `epoch`, and of the next group."""
        shard = self.corpus.shard_of(number)
        source = int(self.owners[shard])
        groups = [*self.groups(epoch, source), *self.groups(epoch + 1, source)]
        at = next(i for i, group in enumerate(groups) if shard in group)
        return groups[at] + groups[at + 1]


class ExampleRows(PackedRows):
    """Data set of row lists, indexed by shares of `order`, or by the numbers of held-out examples.

    In training it prefetches remote shards.
    """

    def __init__(
        self, examples: PretrainExamples, max_tokens: int, order: ExampleOrder | None = None
    ) -> None:
        super().__init__(examples, max_tokens)
        self.corpus, self.order = examples.corpus, order

    def __getitem__(self, share: np.ndarray) -> list[PretrainRow]:
        if self.order is None:
            share = np.stack([np.full(len(share), _VALIDATION), share], axis=1)
        elif self.corpus.remote:
            self.corpus.prefetch(self.order.soon(*share[-1].tolist()))
        return super().__getitem__(share)
