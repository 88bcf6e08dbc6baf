"""Packed rows of examples: one or two segments, masked tokens, labels; and the order of training.

All depends only on (seed, epoch, number of the example), so any process can make any example. The
price is that examples are made anew in every epoch, by the loader processes.
"""

from typing import Any

import numpy as np
import torch

from detalbert.corpus.read import Corpus
from detalbert.engine.order import ShardOrder, TrainOrder
from detalbert.engine.rows import SpanRow
from pretrain.hparams import PretrainHParams
from pretrain.masking import Vocabulary, choose_tokens, corrupt, find_words
from pretrain.spans import Cloze, make_cloze

NO_LABEL = -100
_NO_TOKENS = np.zeros(0, np.int64)
# The "epoch" of held-out examples: they are masked alike every time.
VALIDATION_EPOCH = 2**40


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

    def make(self, epoch: int, number: int) -> dict[str, Any]:
        """Return one example: columns of a `PretrainRow`, as arrays and numbers. If a span is to be
        selected, nothing is masked.

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
            cloze = make_cloze(
                tokens,
                sentences,
                vocabulary=self.vocabulary,
                rng=rng,
            )
            if cloze is not None:
                return self._select(cloze)
        return self._mask(tokens, sentences, rng)

    def _select(self, cloze: Cloze) -> dict[str, Any]:
        """Return the example in which a span is selected."""
        example = self._lay_out([cloze.query, cloze.passage])
        # Without an answer in the passage [CLS] is the answer.
        first = last = 0
        if cloze.first >= 0:
            # After [CLS] query [SEP].
            begin = len(self.vocabulary.prefix) + len(cloze.query) + len(self.vocabulary.middle)
            first = begin + cloze.first
            last = begin + cloze.last
        example["start_positions"] = first
        example["end_positions"] = last
        return example

    def _mask(
        self,
        tokens: np.ndarray,
        sentences: np.ndarray,
        rng: np.random.Generator,
    ) -> dict[str, Any]:
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
            words,
            fraction=hparams.masked_fraction,
            max_ngram=hparams.max_ngram,
            rng=rng,
        )  # [M]
        text = np.concatenate(segments)  # [T - 2], or [T - 3] of two segments
        labels = text[chosen]  # [M]
        text[chosen] = corrupt(labels, self.vocabulary, rng)

        # In the example [CLS] comes before a token, and after the first segment a [SEP] too.
        first_length = len(segments[0])
        before = np.full_like(chosen, len(self.vocabulary.prefix))  # [M]
        before[chosen >= first_length] += len(self.vocabulary.middle)
        bounds = [first_length] if len(segments) == 2 else []
        example = self._lay_out(np.split(text, bounds))
        example["masked"] = chosen + before
        example["mlm_labels"] = labels
        example["sop_labels"] = swapped
        return example

    def _lay_out(self, segments: list[np.ndarray]) -> dict[str, Any]:
        """Return [CLS] A [SEP] or [CLS] A [SEP] B [SEP], without targets."""
        vocabulary = self.vocabulary
        pieces = [vocabulary.prefix, segments[0]]
        for segment in segments[1:]:
            pieces += [vocabulary.middle, segment]
        first_length = sum(map(len, pieces[:3]))  # of the first segment and what is around it
        ids = np.concatenate([*pieces, vocabulary.suffix])  # [T]
        types = np.zeros_like(ids)
        if len(segments) == 2:
            types[first_length:] = 1
        return {
            "input_ids": ids,
            "token_type_ids": types,
            "masked": _NO_TOKENS,
            "mlm_labels": _NO_TOKENS,
            "sop_labels": NO_LABEL,
            "start_positions": NO_LABEL,
            "end_positions": NO_LABEL,
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
            values = [example[name] for example in examples]
            row[name] = np.hstack(values).astype(np.int64)
        row["position_ids"] = np.concatenate([np.arange(length) for length in lengths])
        row["cu_seqlens"] = bounds.astype(np.int32)
        row["windows"] = np.ascontiguousarray(tickets[:, 1])
        return row


class ExampleOrder(TrainOrder):
    """The examples of every step, shard by shard (ShardOrder), spread over the ranks.

    Args:
        examples: of the training split.
        global_batch_size: examples per step; must be a multiple of `slots`.
        slots: number of ranks.
        seed: of the permutations.
    """

    def __init__(
        self, examples: PretrainExamples, global_batch_size: int, slots: int, seed: int
    ) -> None:
        super().__init__(examples.lengths, global_batch_size, slots, seed)
        corpus = examples.corpus
        self.order = ShardOrder(
            corpus.bounds,
            sources=corpus.sources,
            weights=corpus.weights,
            global_batch_size=global_batch_size,
            seed=seed,
            group=corpus.data.shuffle_shards,
        )

    def global_batch(self, step: int) -> np.ndarray:
        """Return (epoch of its source, number) of the examples of `step`, int64 [B, 2]."""
        return self.order.global_batch(step)
