"""Token shards for pretraining. Imports no torch: see detalbert/corpus/writer.py."""

from collections.abc import Callable
from typing import Any

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.learn_tokenizer import find_tokenizer
from detalbert.corpus.writer import load_in_child, write_shards
from detalbert.settings.text import TextConfig
from pretrain.hparams import PretrainHParams


def load_tokenizer(
    data: TextConfig, hparams: PretrainHParams, load: Callable[..., Any]
) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of `data.tokenizer`, or one trained on the text, by `load`,
    `named_tokenizer` or its like. Raises UserError if it lacks a mask, cls or sep token.
    """
    positions = hparams.model_keys()["max_position_embeddings"]
    held_out = 0.0 if data.validation is not None else data.validation_fraction
    needed = "mask_token", "cls_token", "sep_token"
    return load(find_tokenizer(data, held_out, positions), *needed, kind="an ALBERT or BERT")


def write_corpus(
    data: TextConfig, hparams: PretrainHParams, output: str | None, processes: int | None
) -> str:
    """Write the shards of an experiment's `data:`; return where they are."""
    tokenizer = load_tokenizer(data, hparams, load_in_child)
    return write_shards(data, tokenizer, ExampleKind(hparams.max_seq_length), output, processes)
