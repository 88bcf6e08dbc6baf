"""Token shards of a language model: documents as tokens, without loss of text.

An end-of-text token ends each document; the tokens that the tokenizer itself puts before a text
(Llama's <s>) begin it, so that a model is trained on what transformers and servers feed it.
`document_ptr` holds where documents begin, so a shard can be cut into windows of any length.
Imports no torch: see detalbert/corpus/write.py.
"""

import copy
from collections.abc import Callable

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.vocabulary import find_tokenizer
from detalbert.corpus.words import WordEncoder
from detalbert.corpus.write import Part, load_in_child, write_shards
from lm.hparams import DocumentsConfig


class DocumentKind:
    """Shards of documents, each between the tokens `begin_of_text` and the token `end_of_text`.

    Args:
        tokenizer: a fast one with an end-of-text token, without truncation and padding.
    """

    name = "documents"
    strips = False  # white space around a document is part of it

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        # The tokens that the tokenizer's own call puts before a text; most have none.
        tokens = tokenizer("a")["input_ids"]
        first, *_ = tokenizer("a", add_special_tokens=False)["input_ids"]
        self.begin_of_text = tokens[: tokens.index(first)]
        self.end_of_text = tokenizer.eos_token_id
        # What a shard's bytes depend on, besides text and tokenizer.
        self.facts = {"begin_of_text": self.begin_of_text, "end_of_text": self.end_of_text}
        # A copy, which reads "<|endoftext|>" in documents as text.
        backend = copy.deepcopy(tokenizer.backend_tokenizer)
        backend.encode_special_tokens = True
        self.encoder = WordEncoder(backend)

    def tokenize(self, documents: list[str]) -> dict[str, np.ndarray]:
        """Return columns: tokens of all documents [N], and tokens per document [D]."""
        tokens, lengths = self.encoder(documents)  # of text: [N], [D]
        tokens = np.insert(
            tokens,
            np.cumsum(lengths),
            self.end_of_text,
        )
        lengths = lengths + 1
        for token in reversed(self.begin_of_text):
            tokens = np.insert(
                tokens,
                np.cumsum(lengths) - lengths,
                token,
            )
            lengths = lengths + 1
        return {"tokens": tokens, "document_ptr": lengths}


def load_tokenizer(
    data: DocumentsConfig, load: Callable[..., PreTrainedTokenizerBase]
) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of `data.tokenizer`, or one learned from the documents.

    Args:
        data: `data:` of the experiment.
        load: `named_tokenizer` or `load_in_child`.

    Raises:
        UserError: if it has no end-of-text token.
    """
    return load(find_tokenizer(data), "eos_token", kind="a causal language model")


def write_corpus(
    data: DocumentsConfig,
    hparams: object,
    output: str | None,
    processes: int | None,
    part: Part,
) -> str:
    """Write the shards of an experiment's `data:`, for any length; return where they are."""
    kind = DocumentKind(load_tokenizer(data, load_in_child))
    return write_shards(data, kind, output=output, processes=processes, part=part)
