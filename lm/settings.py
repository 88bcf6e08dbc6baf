"""Keys of `data:` for the documents of a causal language model."""

from dataclasses import dataclass
from typing import Any

from detalbert.settings.sections import parse_section
from detalbert.settings.text import CorpusConfig


@dataclass(frozen=True)
class DocumentsConfig(CorpusConfig):
    """Documents to train on; a tokenizer that is trained on them is byte-level."""

    source = "documents"

    documents: str | None = None  # see corpus/sources.py for what it may name
    validation_documents: str | None = None  # held-out; default: a fraction of the documents


def parse_documents_config(values: Any) -> DocumentsConfig:
    """Parse `data:` of a language model. Raises UserError as `parse_section` does."""
    return parse_section(DocumentsConfig, "data", values)
