"""The keys of `data:` where documents are read, for a causal language model."""

from dataclasses import dataclass
from typing import Any

from detalbert.settings.sections import parse_section
from detalbert.settings.text import CorpusConfig


@dataclass(frozen=True)
class DocumentsConfig(CorpusConfig):
    """Whole documents to train on; a tokenizer that is learned from them is byte-level."""

    source = "documents"

    documents: str | None = None  # see corpus/sources.py for what it may name
    validation_documents: str | None = None  # held-out; default: a fraction of the documents


def parse_documents_config(values: Any) -> DocumentsConfig:
    """`data:` of a language model's experiment. Raises UserError as `parse_section` does."""
    return parse_section(DocumentsConfig, "data", values)
