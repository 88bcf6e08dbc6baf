"""Documents as tokens for a causal language model, without loss of text.

An end-of-text token ends each document; the tokens that the tokenizer itself puts before a text
(Llama's <s>) begin it, so that a model is trained on what transformers and servers feed it.
`document_ptr` holds where documents begin, so a shard can be cut into windows of any length.
"""

import copy
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.corpus.words import WordEncoder
from detalbert.squad.encoding import tokenizer_sum


def begin_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that a tokenizer's own call puts before a text; most have none."""
    tokens = tokenizer("a")["input_ids"]
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    # What is before the text's own tokens, wherever they begin.
    places = [i for i in range(len(tokens)) if tokens[i : i + len(plain)] == plain]
    return tokens[: places[0]] if places else []


class DocumentKind:
    """Shards of documents, each between the tokens `begin_of_text` and the token `end_of_text`.

    Args:
        tokenizer: a fast one with an end-of-text token.
    """

    strips = False  # white space around a document is part of it

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.begin_of_text = begin_tokens(tokenizer)
        self.end_of_text = tokenizer.eos_token_id
        # A copy, which truncates nothing and reads "<|endoftext|>" in documents as text.
        backend = copy.deepcopy(tokenizer.backend_tokenizer)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        self.encoder = WordEncoder(backend)

    def facts(self) -> dict[str, Any]:
        """Return all that a shard's bytes depend on besides its text."""
        return {
            "kind": "documents",
            "tokenizer": tokenizer_sum(self.tokenizer),
            "begin_of_text": self.begin_of_text,
            "end_of_text": self.end_of_text,
        }

    def tokenize(self, documents: list[str]) -> dict[str, np.ndarray]:
        """Return columns: tokens of all documents [N], and tokens per document [D]."""
        ids, lengths = self.encoder(documents)  # [tokens of text], [D]
        stops = np.cumsum(lengths)
        starts = stops - lengths

        # Document by document: its special tokens, and their places among the tokens of text.
        special_tokens = [*self.begin_of_text, self.end_of_text]
        begin_size = len(self.begin_of_text)
        places = np.repeat(np.stack([starts, stops], axis=1), [begin_size, 1], axis=1)
        tokens = np.insert(ids, places.ravel(), np.tile(special_tokens, len(documents)))
        return {"tokens": tokens, "document_ptr": lengths + len(special_tokens)}
