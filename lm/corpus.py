"""Token shards of a language model. Imports no torch: see detalbert/corpus/write.py."""

from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

from detalbert.corpus.vocabulary import find_tokenizer
from detalbert.corpus.write import Part, load_in_child, write_shards
from lm.documents import DocumentKind
from lm.hparams import DocumentsConfig


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
