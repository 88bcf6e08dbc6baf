"""Token shards of a language model. Imports no torch: see detalbert/corpus/writer.py."""

from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.documents import document_kind
from detalbert.corpus.learn_tokenizer import find_tokenizer
from detalbert.corpus.shards import ShardPart
from detalbert.corpus.writer import load_in_child, write_shards
from detalbert.settings.text import DocumentsConfig


def load_tokenizer(
    data: DocumentsConfig, load: Callable[..., PreTrainedTokenizerBase]
) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of `data.tokenizer`, or one trained on the documents.

    Args:
        data: `data:` of the experiment.
        load: `named_tokenizer` or `load_in_child`.

    Raises:
        UserError: if it has no end-of-text token.
    """
    # Held-out documents teach the tokenizer nothing.
    name = find_tokenizer(data, 0.0 if data.held_out else data.validation_fraction)
    return load(name, "eos_token", kind="a causal language model")


def write_corpus(
    data: DocumentsConfig,
    hparams: object,
    output: str | None,
    processes: int | None,
    part: ShardPart | None,
) -> str:
    """Write the shards of an experiment's `data:`, for any length; return where they are."""
    tokenizer = load_tokenizer(data, load_in_child)
    kind = document_kind(tokenizer)
    return write_shards(data, tokenizer, kind, output=output, processes=processes, part=part)
