"""Cut a vocabulary to the pieces that some texts need: a smaller model, the same tokens."""

import json
from collections.abc import Iterable

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedModel


def prune(model: PreTrainedModel, tokenizer: Tokenizer, texts: Iterable[str]) -> Tokenizer:
    """Drop the pieces that `texts` do not need from the tokenizer and from `model`'s embeddings.

    Byte-pair encoding joins pairs, most frequent first. A join that never happens in a text can go
    without a change to that text's pieces. The new vocabulary has the special pieces, the single
    characters, the pieces of `texts` and the parts that they are joined from, in their old order.

    Args: model: changed in place; texts: each must keep its pieces, else ValueError.
    Returns: the smaller tokenizer.
    """
    backend = json.loads(tokenizer.to_str())
    vocabulary, merges = backend["model"]["vocab"], backend["model"]["merges"]
    texts = list(texts)
    before = [encoding.tokens for encoding in tokenizer.encode_batch(texts)]
    needed = {piece for tokens in before for piece in tokens}
    needed |= {piece for piece in vocabulary if len(piece) == 1}
    needed |= {piece["content"] for piece in backend["added_tokens"]}
    for left, right in reversed(merges):  # a piece is joined after its parts
        if left + right in needed:
            needed |= {left, right}
    kept = sorted(needed, key=vocabulary.__getitem__)
    backend["model"]["merges"] = [pair for pair in merges if {*pair, "".join(pair)} <= needed]
    backend["model"]["vocab"] = {piece: new for new, piece in enumerate(kept)}
    smaller = Tokenizer.from_str(json.dumps(backend))
    if before != [encoding.tokens for encoding in smaller.encode_batch(texts)]:
        raise ValueError("pruning would change the pieces of a text")

    rows = torch.tensor([vocabulary[piece] for piece in kept])
    words = model.get_input_embeddings().weight.detach()[rows]  # [kept, size]
    padding = model.config.pad_token_id  # special pieces come first, and their ids stay
    words = nn.Embedding.from_pretrained(words, freeze=False, padding_idx=padding)
    model.set_input_embeddings(words)
    model.config.vocab_size = len(kept)
    return smaller
