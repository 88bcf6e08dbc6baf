"""Families of encoders with a masked language model: small configs, and tokenizers as theirs."""

import copy
import functools
from typing import Any, NamedTuple

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer, UnigramTrainer, WordPieceTrainer
from transformers import PreTrainedTokenizerFast

from tests.fakes.text import contexts

BERT_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
FAIRSEQ_TOKENS = {  # in the order of their ids: 0, 1, 2
    "cls_token": "<s>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
SIZE = 600
SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.2,
}
DROPOUT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
POSITIONS = 130
DEBERTA_V2 = {
    "relative_attention": True,
    "position_biased_input": False,
    "type_vocab_size": 0,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "position_buckets": 16,
    "max_relative_positions": 64,
}


class MaskedFamily(NamedTuple):
    """Keys of a `model_config`, how the family's tokenizer works, and how its model runs."""

    keys: dict[str, Any]
    tokenizer: str  # of `make_tokenizer`
    packed: bool = True
    has_types: bool = True


def _family(model_type, **keys):
    return {"model_type": model_type, **SHAPE, "max_position_embeddings": POSITIONS, **keys}


FAMILIES = {
    "bert": MaskedFamily(_family("bert", **DROPOUT), tokenizer="bert"),
    "roberta": MaskedFamily(
        _family("roberta", type_vocab_size=1, **DROPOUT), tokenizer="roberta", has_types=False
    ),
    "xlm-roberta": MaskedFamily(
        _family("xlm-roberta", type_vocab_size=1, **DROPOUT), tokenizer="xlm", has_types=False
    ),
    "electra": MaskedFamily(_family("electra", embedding_size=16, **DROPOUT), tokenizer="bert"),
    "modernbert": MaskedFamily(
        _family("modernbert", local_attention=16, mlp_dropout=0.1),
        tokenizer="modernbert",
        has_types=False,
    ),
    "deberta-v2": MaskedFamily(
        _family("deberta-v2", **DEBERTA_V2, **DROPOUT),
        tokenizer="deberta",
        packed=False,
        has_types=False,
    ),
    "mpnet": MaskedFamily(
        _family("mpnet", **DROPOUT), tokenizer="mpnet", packed=False, has_types=False
    ),
}


def make_tokenizer(kind):
    """Return a tokenizer of made-up text, with the marks and the layout of a family's.

    A test may change it: the next one gets a copy of its own.
    """
    return copy.deepcopy(_train_tokenizer(kind))


@functools.cache
def _train_tokenizer(kind):
    is_fairseq = kind in ("roberta", "xlm", "mpnet")
    special_tokens = FAIRSEQ_TOKENS if is_fairseq else BERT_TOKENS
    options = {"vocab_size": SIZE, "special_tokens": list(special_tokens.values())}
    unknown = special_tokens["unk_token"]
    if kind in ("bert", "mpnet"):
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = WordPieceTrainer(**options)
    elif kind in ("xlm", "deberta"):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = UnigramTrainer(**options, unk_token=unknown)
    else:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = BpeTrainer(**options, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([*contexts(60), "## a heading ##, really!"] * 2, trainer)

    cls, sep = special_tokens["cls_token"], special_tokens["sep_token"]
    between = f"{sep} {sep}" if is_fairseq else sep
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {between} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special_tokens)
