"""Names by which other trainers call keys: synonyms.yaml has the words and what to use for them."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _table() -> dict[str, Any]:
    from detalbert.settings.yaml_files import read_yaml  # YAML may be missing in a task's image

    return read_yaml(Path(__file__).with_suffix(".yaml"))


def hint(key: str, known: Iterable[str]) -> str | None:
    """Return what to use for `key`, a word of another trainer; None if it is not in the table."""
    table, word = _table(), key.lower().replace("-", "_")
    for name, words in table["names"].items():
        if word in words and name in known:
            note = "It counts steps" if name.endswith("_period") else table["notes"].get(name, "")
            return f"did you mean {name!r}? {note}".rstrip()
    return table["advice"].get(word)
