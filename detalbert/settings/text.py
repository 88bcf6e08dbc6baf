"""Keys of `data:` for text that becomes token shards: for pretraining, and language models.

Both have these keys, and names of their own for the text and the held-out text, which tell one
workload from the other: see their hparams.py.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, ClassVar

from pydantic import Field

from detalbert.errors import UserError
from detalbert.settings.sections import Section, parse_section, strict_dataclass


@strict_dataclass
class SourceConfig(Section):
    """A source of text: one value of `data.text`, or one of a list there."""

    source: str  # a file, folder, pattern, address or hub name: see corpus/text.py
    weight: float | None = Field(None, gt=0, le=1e9)  # share of windows; default: by size
    text_key: str = "text"  # key or column of a row that holds the text
    # In scores, and of a folder; default: the last part of the address.
    name: str | None = Field(None, pattern=r"^[\w-]+$")


# An address, a mapping of SourceConfig's keys, or a list of these.
Sources = str | dict[str, Any] | list[Any] | None


def parse_sources(key: str, value: Sources) -> list[SourceConfig]:
    """Return the sources of `data.KEY`; a list's have names. Raises UserError as `parse_section`
    does, and for two of one name.
    """
    if value is None:
        return []
    if not isinstance(value, list):
        return [_source(f"data.{key}", value)]
    sources = []
    for number, item in enumerate(value):
        source = _source(f"data.{key}[{number}]", item)
        sources.append(replace(source, name=source.name or _name_of(source.source)))
    _check_list(f"data.{key}", sources)
    return sources


def _source(key: str, value: object) -> SourceConfig:
    """Return a source that is given by its address, or by a mapping of its keys."""
    values = {"source": value} if isinstance(value, str) else value
    return parse_section(SourceConfig, key, values)


def _name_of(address: str) -> str:
    """Return the last part of an address without its ending, as a name."""
    return re.sub(r"[^\w-]+", "_", PurePath(address).stem)


def _check_list(key: str, sources: Sequence[SourceConfig]) -> None:
    """Raise UserError unless each source has a name of its own, and all or none a weight."""
    if not sources:
        raise UserError("an empty list", key=key, cure="name a source")
    names = [str(source.name) for source in sources]
    if len(set(names)) < len(names):
        raise UserError(f"two of one name: {', '.join(names)}", key=key, cure="set their 'name'")
    # Shares of the windows are by weight or by size, not by both.
    is_weighted = {source.weight is not None for source in sources}
    if len(is_weighted) > 1:
        raise UserError(
            "some sources have a 'weight', some have none", key=key, cure="give all one"
        )


@strict_dataclass
class CorpusConfig(Section):
    """A text corpus: text to tokenize into shards, or ready-made `shards`. `source` and
    `held_out_source` are the names of the keys that hold the text and the validation text.
    """

    source: ClassVar[str]
    held_out_source: ClassVar[str]
    model_has_tokenizer: ClassVar[bool] = False  # then `tokenizer` may be left out

    tokenizer: str | None = None  # a folder or hub name
    # Or: tokens of a tokenizer that is learned from the text.
    vocab_size: int | None = Field(None, ge=300, le=65_536)
    # Of the documents, held out if no validation text is set; a hash of the text selects them.
    validation_fraction: float = Field(0.01, ge=0, lt=1)
    # A document of plain text: line, file, blank_line, or "100 lines".
    article: str = Field("line", pattern=r"^(line|file|blank_line|[1-9][0-9]{0,8} lines)$")
    # A folder or address of token shards, which say what they hold and have their tokenizer.
    shards: str | None = None
    shard_mib: float = Field(64, gt=0, le=1_000_000)  # of tokens in a shard, about
    # Read at the same time, their windows mixed.
    shuffle_shards: int = Field(8, gt=0, le=10_000)
    cache_dir: str = ".cache"

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
        is_named = self.tokenizer is not None
        is_learned = self.vocab_size is not None
        if self.shards is not None:
            has_one = not is_learned
        elif self.model_has_tokenizer:
            has_one = not (is_named and is_learned)
        else:
            has_one = is_named != is_learned
        if not has_one:
            raise UserError(
                "set either 'tokenizer' (a folder or hub name) or 'vocab_size' (to learn one); "
                "shards have one",
                key="data.tokenizer",
            )
        # Both raise UserError for a wrong source.
        is_weighted = any(source.weight for source in self.held_out)
        if self.training and is_weighted:
            raise UserError(
                "'weight' is for training text",
                key=f"data.{self.held_out_source}",
                cure="leave it",
            )
