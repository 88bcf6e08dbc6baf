"""The sources of a config, opened: what there is to write, before any of it is read."""

from typing import Any, NamedTuple

from detalbert.corpus.sources import Text, open_text
from detalbert.reading.forms import check_sheet
from detalbert.settings.text import CorpusConfig, SourceConfig


class OpenedText(NamedTuple):
    """A source of the config, opened."""

    purpose: str  # "text" or "validation"
    name: str  # of the source; "" if it is the only one
    text: Text


def open_texts(data: CorpusConfig, exact: bool) -> list[OpenedText]:
    """Open the sources. Without any for "validation", some documents of "text" are held out.

    Raises:
        UserError: an address has no text, or `data.sheet` names a sheet and no file has sheets.
    """
    texts = open_training(data, exact)
    for source in data.held_out:
        texts.append(_open(data, source, data.held_out_source, split="validation", exact=exact))
    parts = [part for opened in texts for part in opened.text.parts]
    check_sheet([part.content for part in parts if part.content], data.sheet)
    return texts


def open_training(data: CorpusConfig, exact: bool) -> list[OpenedText]:
    """Open the sources of the training text. Raises UserError if an address has no text."""
    return [
        _open(data, source, data.source, split="train", exact=exact) for source in data.training
    ]


def _open(
    data: CorpusConfig, source: SourceConfig, key: str, split: str, exact: bool
) -> OpenedText:
    text = open_text(
        source,
        key=f"data.{key}",
        split=split,
        exact=exact,
        article=data.article,
        form=source.form or data.form,
        sheet=data.sheet,
    )
    purpose = "text" if split == "train" else split
    return OpenedText(purpose, name=source.name or "", text=text)


def fingerprints_of(texts: list[OpenedText]) -> dict[str, Any]:
    """Return the fingerprints by purpose, and by name where a purpose has a list of sources."""
    fingerprints: dict[str, Any] = {}
    for purpose, name, text in texts:
        if name:
            by_name = fingerprints.setdefault(purpose, {})
            by_name[name] = text.fingerprint
        else:
            fingerprints[purpose] = text.fingerprint
    return fingerprints
