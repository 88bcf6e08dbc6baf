"""Packed rows of examples: one or two segments, masked tokens, labels; and the order of training.

All depends only on (seed, epoch, number of the example), so any process can make any example. The
price is that examples are made anew in every epoch, by the loader processes.
"""

from typing import TypedDict

import numpy as np
import torch

from detalbert.corpus.mixture import Mixture
from detalbert.corpus.read import Corpus
from detalbert.engine.loaders import PackedRows
from detalbert.engine.order import TrainOrder
from detalbert.engine.rows import SpanRow
from pretrain.hparams import PretrainHParams
from pretrain.masking import Vocabulary, choose_tokens, corrupt, find_words
from pretrain.spans import Cloze, make_cloze

NO_LABEL = -100
_NO_TOKENS = np.zeros(0, np.int64)
# The "epoch" of held-out examples: they are masked alike every time.
_VALIDATION = 2**40


class MaskedExample(TypedDict):
    """One example of T tokens, M of them masked; NO_LABEL for objectives that it lacks."""

    input_ids: np.ndarray  # int64 [T]
    token_type_ids: np.ndarray  # int64 [T]
    masked: np.ndarray  # int64 [M], places of the hidden tokens in the example
    mlm_labels: np.ndarray  # int64 [M], what they were
    sop_labels: int  # 0: segments as in the text, 1: swapped
    start_positions: int  # of the answer, in the example
    end_positions: int


class PretrainRow(SpanRow):
    """A row of examples with M of its T tokens masked; NO_LABEL for objectives an example lacks."""

    masked: torch.Tensor  # int64 [M], places of the hidden tokens in the row
    mlm_labels: torch.Tensor  # int64 [M], what they were
    sop_labels: torch.Tensor  # int64 [n], 0: segments as in the text, 1: swapped, NO_LABEL: no pair


class PretrainExamples:
    """The examples of a corpus as model inputs."""

    def __init__(self, corpus: Corpus, vocabulary: Vocabulary, hparams: PretrainHParams) -> None:
        self.corpus = corpus
        self.vocabulary = vocabulary
        self.hparams = hparams
        text, sentences = corpus.table.T.astype(np.int32)  # [E]: tokens, sentences
        makes_pairs = hparams.sentence_order or hparams.span_fraction > 0
        is_pair = (sentences > 1) & makes_pairs
        self.pairs = int(np.count_nonzero(is_pair))  # examples with two segments
        # int32 [E]: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]; a few fewer if a span is selected.
        around = len(vocabulary.prefix) + len(vocabulary.suffix)
        self.lengths = text + around + is_pair * np.int32(len(vocabulary.middle))

    def make(self, epoch: int, number: int) -> MaskedExample:
        """Return one example. If a span is to be selected, nothing is masked.

        Args:
            epoch: of its source; in each, other tokens are masked.
            number: in the corpus.
        """
        span_fraction = self.hparams.span_fraction
        rng = np.random.default_rng([self.hparams.known_seed, epoch, number])
        tokens, sentences = self.corpus.example(number)
        # Without spans no number is drawn for them: the others stay the same.
        selects_span = span_fraction > 0 and rng.random() < span_fraction
        if selects_span and len(sentences) > 1:
            cloze = make_cloze(tokens, sentences, vocabulary=self.vocabulary, rng=rng)
            if cloze is not None:
                return self._select(cloze)
        return self._mask(tokens, sentences, rng)

    def _select(self, cloze: Cloze) -> MaskedExample:
        """Return the example in which a span is selected."""
        segments = [cloze.query, cloze.passage]
        # Without an answer in the passage [CLS] is the answer.
        if cloze.first < 0:
            return self._lay_out(segments, start_positions=0, end_positions=0)
        # Of the passage, after [CLS] query [SEP].
        begin = len(self.vocabulary.prefix) + len(cloze.query) + len(self.vocabulary.middle)
        return self._lay_out(
            segments,
            start_positions=begin + cloze.first,
            end_positions=begin + cloze.last,
        )

    def _mask(
        self, tokens: np.ndarray, sentences: np.ndarray, rng: np.random.Generator
    ) -> MaskedExample:
        """Return the example with masked tokens and, if it has two segments, their order."""
        hparams = self.hparams
        segments = [tokens]
        swapped = NO_LABEL
        if hparams.sentence_order and len(sentences) > 1:
            first_sentences = sentences[: rng.integers(1, len(sentences))]
            cut = first_sentences.sum()
            segments = [tokens[:cut], tokens[cut:]]
            swapped = int(rng.random() < 0.5)
            if swapped:
                segments.reverse()

        # Mask words of the text as it is shown.
        words = find_words(segments, self.vocabulary)
        chosen = choose_tokens(
            words, fraction=hparams.masked_fraction, max_ngram=hparams.max_ngram, rng=rng
        )  # [M]
        text = np.concatenate(segments)  # [T - 2], or [T - 3] of two segments
        labels = text[chosen]  # [M]
        text[chosen] = corrupt(labels, self.vocabulary, rng)

        # In the example [CLS] comes before a token, and after the first segment a [SEP] too.
        first_length = len(segments[0])
        middle_length = len(self.vocabulary.middle)
        masked = chosen + len(self.vocabulary.prefix) + middle_length * (chosen >= first_length)
        shown = [text[:first_length]]
        if len(segments) == 2:
            shown.append(text[first_length:])
        return self._lay_out(shown, masked=masked, mlm_labels=labels, sop_labels=swapped)

    def _lay_out(
        self,
        segments: list[np.ndarray],
        masked: np.ndarray = _NO_TOKENS,
        mlm_labels: np.ndarray = _NO_TOKENS,
        sop_labels: int = NO_LABEL,
        start_positions: int = NO_LABEL,
        end_positions: int = NO_LABEL,
    ) -> MaskedExample:
        """Return [CLS] A [SEP] or [CLS] A [SEP] B [SEP], with its targets."""
        vocabulary = self.vocabulary
        pieces = [vocabulary.prefix, segments[0]]
        for segment in segments[1:]:
            pieces += [vocabulary.middle, segment]
        first_length = sum(map(len, pieces[:3]))  # of the first segment and what is around it
        ids = np.concatenate([*pieces, vocabulary.suffix]).astype(np.int64)  # [T]
        types = np.zeros(len(ids), np.int64)
        if len(segments) == 2:
            types[first_length:] = 1
        return {
            "input_ids": ids,
            "token_type_ids": types,
            "masked": masked,
            "mlm_labels": mlm_labels,
            "sop_labels": sop_labels,
            "start_positions": start_positions,
            "end_positions": end_positions,
        }

    def pack(self, tickets: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of a `PretrainRow` of the examples (epoch, number), int64 [n, 2]."""
        examples = []
        for epoch, number in tickets.tolist():
            examples.append(self.make(epoch, number))
        lengths = [len(example["input_ids"]) for example in examples]
        bounds = np.cumsum([0, *lengths])  # [n + 1]: each example's first token, and T
        # Places in an example become places in the row.
        for example, begin in zip(examples, bounds, strict=False):
            example["masked"] = example["masked"] + begin
        row = {}
        for name in examples[0]:
            values = [example[name] for example in examples]  # type: ignore[literal-required]
            row[name] = np.hstack(values).astype(np.int64)
        row["position_ids"] = np.concatenate([np.arange(length) for length in lengths])
        row["cu_seqlens"] = bounds.astype(np.int32)
        row["windows"] = np.ascontiguousarray(tickets[:, 1])
        return row


class ExampleOrder(TrainOrder):
    """The examples of every step. An epoch reads the shards in a new order, `group` of them at a
    time, and mixes the examples of a group. So a machine needs at most two groups at once. Sources
    with weights are each read so, and dealt by `Mixture`.

    Args:
        examples: of the training split.
        global_batch_size: examples per step; must be a multiple of `slots`.
        slots: number of ranks.
        seed: of the permutations.
        group: shards whose examples are mixed.
    """

    def __init__(
        self, examples: PretrainExamples, global_batch_size: int, slots: int, seed: int, group: int
    ) -> None:
        super().__init__(
            lengths=examples.lengths, global_batch_size=global_batch_size, slots=slots, seed=seed
        )
        corpus = examples.corpus
        self.corpus = corpus
        self.group = group
        weights = corpus.weights or [1.0]
        self.mixture = Mixture(weights)
        # Without weights all shards are of one source.
        sources = corpus.sources if corpus.weights else [0] * len(corpus.shards)
        self.shard_sources = np.array(sources)
        shard_sizes = np.diff(corpus.bounds)
        self.sizes = np.bincount(self.shard_sources, shard_sizes, len(weights)).astype(np.int64)
        self.permutations: dict[tuple[int, int], np.ndarray] = {}  # by source and epoch

    def groups(self, epoch: int, source: int = 0) -> list[list[int]]:
        """Return the shards of an epoch of a source in reading order, as groups."""
        shards = np.flatnonzero(self.shard_sources == source)
        rng = np.random.default_rng([self._seed(source), epoch, 1])
        order = rng.permutation(len(shards))
        shards = shards[order]
        groups = []
        for start in range(0, len(shards), self.group):
            end = start + self.group
            groups.append(shards[start:end].tolist())
        return groups

    def permutation(self, epoch: int, source: int = 0) -> np.ndarray:
        """Return all example numbers of a source in the order of its `epoch`, int64 [E]. Those of
        two epochs of each source are cached: a step may need both.
        """
        if (source, epoch) not in self.permutations:
            for cached_source, cached_epoch in list(self.permutations):
                is_neighbour = abs(cached_epoch - epoch) == 1
                if cached_source == source and not is_neighbour:
                    del self.permutations[cached_source, cached_epoch]
            self.permutations[source, epoch] = self._permute(epoch, source)
        return self.permutations[source, epoch]

    def _permute(self, epoch: int, source: int) -> np.ndarray:
        """Return the shards in reading order, the examples of each group mixed, int64 [E]."""
        rng = np.random.default_rng([self._seed(source), epoch])
        examples = np.arange(len(self.corpus))
        by_shard = np.split(examples, self.corpus.bounds[1:-1])
        mixed: list[np.ndarray] = []
        for group in self.groups(epoch, source):
            numbers = np.concatenate([by_shard[shard] for shard in group])
            mixed.append(rng.permutation(numbers))
        return np.concatenate(mixed)

    def _seed(self, source: int) -> int:
        return self.seed + (source << 64)

    def global_batch(self, step: int) -> np.ndarray:
        """Return (epoch of its source, number) of the examples of `step`, int64 [B, 2]."""
        sources, positions = self.mixture.deal(
            first=step * self.global_batch_size, count=self.global_batch_size
        )  # [B] each
        # Each source begins a new epoch when all its examples were dealt.
        epochs, places = np.divmod(positions, self.sizes[sources])
        numbers = np.empty_like(places)
        for source in np.unique(sources).tolist():
            for epoch in np.unique(epochs[sources == source]).tolist():
                chosen = (sources == source) & (epochs == epoch)
                numbers[chosen] = self.permutation(epoch, source)[places[chosen]]
        return np.stack([epochs, numbers], axis=1)


class ExampleRows(PackedRows):
    """Data set of row lists, indexed by shares of `order`, or by numbers of held-out examples."""

    def __init__(
        self,
        examples: PretrainExamples,
        max_tokens: int,
        order: ExampleOrder | None = None,
        padded: bool = False,
    ) -> None:
        super().__init__(examples, max_tokens, padded)
        self.order = order

    def __getitem__(self, share: np.ndarray) -> list[PretrainRow]:
        if self.order is None:
            # Held-out examples are always of the same epoch, so they are masked alike.
            epochs = np.full(len(share), _VALIDATION)
            share = np.stack([epochs, share], axis=1)
        return super().__getitem__(share)
