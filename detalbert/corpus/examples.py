"""Examples of encoders: consecutive sentences of one document, as many as fit in a window."""

import itertools
from collections.abc import Iterable

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.sentences import RULE, split_sentences
from detalbert.corpus.words import WordEncoder
from detalbert.settings.languages import ENGLISH
from detalbert.squad.encoding import tokenizing

_SPECIAL_TOKENS = 3  # [CLS] A [SEP] B [SEP]


class ExampleKind:
    """Shards of examples for windows of `max_seq_length` tokens, of which some are special."""

    name = "examples"
    strips = True  # a document has no white space around it

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, language: str = ENGLISH
    ) -> None:
        self.tokenizer = tokenizer
        self.language = language
        special_tokens = tokenizer.num_special_tokens_to_add(pair=True)
        self.capacity = max_seq_length - max(special_tokens, _SPECIAL_TOKENS)
        backend = tokenizer.backend_tokenizer
        with tokenizing():
            # Tokenizers of GPT-2's kind have the space before a word in its token: then a sentence
            # has the space before it.
            first_word, word = (backend.encode(text).ids for text in ("a", " a"))
        self.spaced = word != first_word
        # What a shard's bytes depend on, besides text and tokenizer.
        self.facts = {
            "max_seq_length": max_seq_length,
            "sentences": f"{RULE} {language}",
            "spaced": self.spaced,
        }
        self.encoder = WordEncoder(backend)

    def tokenize(self, documents: list[str]) -> dict[str, np.ndarray]:
        """Return columns: tokens [N], tokens per sentence [S], tokens and sentences per example
        [E, 2], and each of these two once more, as offsets of examples.
        """
        by_document = [
            split_sentences(document, self.spaced, self.language) for document in documents
        ]
        tokens, lengths = self.encoder(list(itertools.chain.from_iterable(by_document)))
        sentences = iter(lengths.tolist())
        sizes: list[int] = []  # tokens per sentence
        examples: list[tuple[int, int]] = []
        for members in by_document:
            cut_document(
                itertools.islice(sentences, len(members)),
                self.capacity,
                sizes,
                examples,
            )
        table = np.array(examples, dtype="<u2").reshape(-1, 2)
        return {
            "tokens": tokens,
            "sentences": np.array(sizes, dtype="<u2"),
            "examples": table,
            "token_ptr": table[:, 0],
            "sentence_ptr": table[:, 1],
        }


def cut_document(
    sentences: Iterable[int], capacity: int, sizes: list[int], examples: list[tuple[int, int]]
) -> None:
    """Cut a document into examples of as many sentences as fit.

    A sentence of more than `capacity` tokens counts as several: sentences of 3, 4 and 9 tokens
    become sizes 3, 4, 8, 1, and with a capacity of 8 examples (7, 2), (8, 1), (1, 1).

    Args:
        sentences: tokens of each.
        capacity: tokens of an example, at most.
        sizes: gets the tokens of each sentence.
        examples: gets the tokens and the number of sentences of each example.
    """
    count = 0  # sentences of the example
    room = capacity
    for length in sentences:
        while length > 0:
            size = min(length, capacity)
            if size > room:
                examples.append((capacity - room, count))
                count = 0
                room = capacity
            sizes.append(size)
            count += 1
            room -= size
            length -= size
    if count:
        examples.append((capacity - room, count))
