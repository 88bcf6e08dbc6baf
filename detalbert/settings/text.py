"""Keys of `data:` for text that becomes token shards: for pretraining, and language models.

Both have the same keys but for the names of the text and of the held-out text, which tell one
workload from the other.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from typing import Any, ClassVar

from detalbert.errors import UserError
from detalbert.settings.forms import FORMS
from detalbert.settings.sections import Section, parse_section, setting
from detalbert.settings.values import Config


@dataclass(frozen=True)
class SourceConfig(Section):
    """A source of text: one value of `data.text`, or one of a list there."""

    source: str  # a file, folder, pattern, address or hub name: see corpus/sources.py
    weight: float | None = setting(None, gt=0, le=1e9)  # share of windows; default: by size
    text_key: str = "text"  # key or column of a row that holds the text
    name: str | None = None  # in scores; default: the last part of the address
    form: str | None = setting(None, choices=FORMS)  # of its files; default: `data.form`


Sources = str | list[Any] | Config | None


def parse_sources(key: str, value: Sources) -> list[SourceConfig]:
    """Return the sources of `data.KEY`: an address, a mapping of SourceConfig's keys, or a list of
    these; a list's have names. Raises UserError as `parse_section` does, and for two of one name.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        return [_source(f"data.{key}", value)]
    sources = [_source(f"data.{key}[{i}]", item) for i, item in enumerate(value)]

    # A name is that of a metric and of a folder, so each source needs one of its own.
    names = [source.name or _name_of(source.source) for source in sources]
    for name in names:
        if not re.fullmatch(r"[\w-]+", name):
            raise UserError(f"name {name!r}: letters, digits, _ and - only", key=f"data.{key}")
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two sources are called {name}", key=f"data.{key}", cure="give each its 'name'"
            )

    # Shares of the windows are by weight or by size, not by both.
    is_weighted = {source.weight is not None for source in sources}
    if len(is_weighted) > 1:
        raise UserError(
            "some sources have a 'weight', some have none", key=f"data.{key}", cure="give all one"
        )
    return [replace(source, name=name) for source, name in zip(sources, names, strict=True)]


def _name_of(address: str) -> str:
    """Return the last part of an address without its ending, as a name."""
    return re.sub(r"[^\w-]+", "_", PurePath(address).stem)


def _source(key: str, value: object) -> SourceConfig:
    """Return a source that is given by its address, or by a mapping of its keys."""
    if isinstance(value, str):
        value = {"source": value}
    elif not isinstance(value, Mapping):
        raise UserError(f"expected text or a mapping with 'source', got {value!r:.60}", key=key)
    return parse_section(SourceConfig, section=key, values=value)


@dataclass(frozen=True)
class CorpusConfig(Section):
    """A text corpus: text to tokenize into shards, or ready-made `shards`. `source` and
    `held_out_source` are the names of the keys that hold the text and the validation text.
    """

    source: ClassVar[str]
    held_out_source: ClassVar[str]
    model_has_tokenizer: ClassVar[bool] = False  # then `tokenizer` may be left out

    tokenizer: str | None = None  # a folder or hub name
    # Or: pieces of a tokenizer that is learned from the text.
    vocab_size: int | None = setting(None, ge=300, le=65_536)
    # Of the documents, held out if no validation text is set; a hash of the text selects them.
    validation_fraction: float = setting(0.01, ge=0, lt=1)
    article: str = "line"  # a document of plain text: line, file, blank_line, or "100 lines"
    form: str | None = setting(None, choices=FORMS)  # of all files; default: by their first bytes
    sheet: str | None = None  # of spreadsheets; default: the first
    # A folder or address of token shards, which say what they hold and have their tokenizer.
    shards: str | None = None
    shard_mib: float = setting(1024, gt=0, le=1_000_000)  # of tokens in a shard, about
    # Read at the same time, their windows mixed.
    shuffle_shards: int = setting(8, gt=0, le=10_000)
    cache_dir: str = ".cache"
    cache_gib: float = setting(64, gt=0, le=1_000_000)  # for shards fetched from afar

    @property
    def training(self) -> list[SourceConfig]:
        """Sources of the training text; none with ready-made shards."""
        return parse_sources(self.source, getattr(self, self.source))

    @property
    def held_out(self) -> list[SourceConfig]:
        """Sources of the validation text; none if a fraction of the documents is held out."""
        held_out = getattr(self, self.held_out_source)
        if held_out is None and getattr(self, self.source) == "generated":
            held_out = "generated"
        return parse_sources(self.held_out_source, held_out)

    def check(self) -> None:
        text = getattr(self, self.source)
        if (text is None) == (self.shards is None):
            raise UserError(
                f"set exactly one of {self.source!r} and 'shards'", key=f"data.{self.source}"
            )
        if not re.fullmatch(r"line|file|blank_line|[1-9]\d{0,8} lines", self.article):
            raise UserError(
                f"{self.article!r:.60}",
                key="data.article",
                cure="give line, file, blank_line, or a number of lines such as '100 lines'",
            )
        if text is not None and not self.training:
            raise UserError("an empty list", key=f"data.{self.source}", cure="name a source")
        if any(source.weight for source in self.held_out):
            raise UserError(
                "'weight' is for training text",
                key=f"data.{self.held_out_source}",
                cure="leave it",
            )
        if self.vocab_size is not None and text is None:
            raise UserError(
                "shards have a tokenizer already", key="data.vocab_size", cure="leave it out"
            )
        is_learned = self.vocab_size is not None
        is_named = self.tokenizer is not None
        is_missing = not is_learned and not is_named and not self.model_has_tokenizer
        if text is not None and (is_missing or is_learned and is_named):
            raise UserError(
                "set either 'tokenizer' (a folder or hub name) or 'vocab_size' (to learn one)",
                key="data.tokenizer",
            )


@dataclass(frozen=True)
class TextConfig(CorpusConfig):
    """Text for pretraining an encoder; default of `tokenizer`: that of `hyperparameters.model`."""

    source = "text"
    held_out_source = "validation"
    model_has_tokenizer = True

    text: Sources = None  # one source, or a list of sources
    validation: Sources = None  # held-out text; default: a fraction of the documents
    max_validation_windows: int | None = setting(10_000, gt=0)


# Both raise UserError as `parse_section` does.
parse_text_config = partial(parse_section, TextConfig, "data")


@dataclass(frozen=True)
class DocumentsConfig(CorpusConfig):
    """Documents for a language model; a tokenizer that is trained on them is byte-level."""

    source = "documents"
    held_out_source = "validation_documents"

    article: str = "file"
    documents: Sources = None  # one source, or a list of sources
    validation_documents: Sources = None  # held-out; default: a fraction of the documents


parse_documents_config = partial(parse_section, DocumentsConfig, "data")
