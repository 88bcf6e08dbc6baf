"""Token shards for pretraining. Imports no torch: see detalbert/corpus/write.py."""

from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.vocabulary import find_tokenizer
from detalbert.corpus.write import Part, load_in_child, write_shards
from detalbert.errors import UserError
from pretrain.hparams import PretrainHParams, TextConfig


def load_tokenizer(
    data: TextConfig,
    hparams: PretrainHParams,
    load: Callable[..., PreTrainedTokenizerBase],
) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of `data.tokenizer`, the model's own, or one learned from the text.

    Args:
        data: `data:` of the experiment.
        hparams: its `hyperparameters:`.
        load: `named_tokenizer` or `load_in_child`.

    Raises:
        UserError: if it lacks a mask, cls or sep token.
    """
    key = "data.tokenizer"
    if data.shards or data.tokenizer or data.vocab_size:
        positions = hparams.model_keys().get("max_position_embeddings", 512)
        name = find_tokenizer(data, positions)
    elif hparams.model:
        key = "hyperparameters.model"
        name = hparams.model
    else:
        raise UserError(
            "missing",
            key=key,
            cure="set it (a folder or hub name), or vocab_size to learn one",
        )
    return load(
        name,
        "mask_token",
        "cls_token",
        "sep_token",
        kind="an encoder with a masked language model",
        key=key,
    )


def write_corpus(
    data: TextConfig,
    hparams: PretrainHParams,
    output: str | None,
    processes: int | None,
    part: Part,
) -> str:
    """Write the shards of an experiment's `data:`; return where they are."""
    tokenizer = load_tokenizer(data, hparams, load_in_child)
    kind = ExampleKind(tokenizer, hparams.max_seq_length, data.language)
    return write_shards(data, kind, output=output, processes=processes, part=part)
