"""Which files of a hub data set's folder are a split, by the rules of `datasets`.

The library itself takes 1.5 s to import, and lists no S3 address beside Determined's botocore. So
its rules are written down here: those of its documentation, "Structure your repository", and the
tests hold them against `datasets.load_dataset_builder`.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any

import yaml
from fsspec.utils import glob_translate

from detalbert.errors import UserError
from detalbert.reading.forms import ENDINGS, ending_of
from detalbert.settings.forms import JSON

CARD = "README.md"
# Files that describe a data set and are none of its rows; `save_to_disk` leaves state.json.
DESCRIPTIONS = (
    CARD,
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dataset_dict.json",
    "state.json",
)
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
# As `datasets` pushes shards: data/train-00000-of-00002.parquet.
_SHARD = re.compile(r"data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_SEPARATOR = re.compile(r"[-._ 0-9]")
# Endings whose files are read together, and which of them count more if they are equally frequent.
_FAMILIES = {**ENDINGS, ".jsonl": JSON, ".ndjson": JSON}
_PREFERRED = (".csv", ".json", ".jsonl", ".arrow", ".parquet")
_FRONT_MATTER = re.compile(r"\s*---\r?\n(.*?)\r?\n---", flags=re.DOTALL)


def is_snapshot(names: Iterable[str], card: str) -> bool:
    """Return whether a folder is a hub data set's: it has a card with metadata, or files that only
    such a folder has.

    Args:
        names: files, relative to the folder.
        card: text of its README.md; "" without one.
    """
    names = set(names)
    if "dataset_infos.json" in names or "dataset_dict.json" in names:
        return True
    return bool(_metadata(card)) or any(map(_SHARD.fullmatch, names))


def has_splits(names: Iterable[str]) -> bool:
    """Return whether each of a folder's files, or the folder that it is in, is named after a split:
    one after the training split, another after another (train.txt beside test.txt).
    """
    splits = []
    for name in names:
        of_folder = _keyword_splits(_folder_words(name))
        splits.append(of_folder or _keyword_splits(_file_words(name)))
    named = set().union(*splits)
    return all(splits) and "train" in named and len(named) > 1


def held_out_names(addresses: list[str]) -> list[str]:
    """Return the files that are named after another split than the training split, or are in a
    folder that is, unless all are: val.jsonl or val/00.jsonl beside 00.jsonl.
    """
    # Names from the folder on that all have in common: the words of that one mean nothing.
    paths = list(map(PurePath, addresses))
    root = os.path.commonpath(paths)
    held_out = []
    for path in paths:
        name = str(path.relative_to(root))
        words = (_folder_words(name), _file_words(name))
        if any(splits and "train" not in splits for splits in map(_keyword_splits, words)):
            held_out.append(name)
    return held_out if len(held_out) < len(paths) else []


def split_names(names: list[str], split: str, card: str, where: str) -> list[str]:
    """Return the names that belong to a split and have the ending of most of it, in order.

    Args:
        names: files that may hold rows, relative to the folder.
        split: "train" or "validation".
        card: as for `is_snapshot`.
        where: the folder, for messages.

    Raises:
        UserError: the card has several configurations, none of them the default.
    """
    return _of_one_form(_names_of_split(names, split, card=card, where=where))


def _names_of_split(names: list[str], split: str, card: str, where: str) -> list[str]:
    # First the card's own patterns, then names of shards, which hold the split's name.
    patterns = _card_patterns(card, where=where)
    if patterns:
        split_patterns = patterns.get(split, [])
        return [name for name in names if _fits(name, patterns=split_patterns)]
    shards = {name: _SHARD.fullmatch(name) for name in names}
    if any(shards.values()):
        return [name for name, shard in shards.items() if shard and shard[1] == split]

    # Then keywords: one in a folder's name counts before one in a file's.
    for words_of in (_folder_words, _file_words):
        splits = {name: _keyword_splits(words_of(name)) for name in names}
        if any(splits.values()):
            return [name for name in names if split in splits[name]]
    return names if split == "train" else []


def _of_one_form(names: list[str]) -> list[str]:
    """Return the files of the form that most have by their endings; all if none has an ending."""
    endings = {name: ending_of(name) for name in names}
    counts = Counter(ending for ending in endings.values() if ending in ENDINGS)
    if not counts:
        return names

    def rank(ending: str) -> tuple[int, int, str]:
        preference = _PREFERRED.index(ending) if ending in _PREFERRED else -1
        return counts[ending], preference, ending

    family = _FAMILIES[max(counts, key=rank)]
    return [name for name in names if _FAMILIES.get(endings[name]) == family]


def _metadata(card: str) -> dict[str, Any]:
    """Return the metadata at the top of a card; {} without any."""
    block = _FRONT_MATTER.match(card)
    if block is None:
        return {}
    try:
        metadata = yaml.safe_load(block[1])
    except yaml.YAMLError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _card_patterns(card: str, where: str) -> dict[str, list[str]]:
    """Return the patterns of each split that a card names; {} if it names none."""
    configs = [
        config
        for config in _metadata(card).get("configs") or ()
        if isinstance(config, dict) and "data_files" in config
    ]
    # Of several configurations, the default one.
    defaults = [
        config
        for config in configs
        if len(configs) == 1 or config.get("default") or config.get("config_name") == "default"
    ]
    if defaults:
        return _patterns_by_split(defaults[0]["data_files"])
    if configs:
        names = ", ".join(str(config.get("config_name")) for config in configs)
        raise UserError(
            f"several configurations ({names:.100})", key=where, cure="name the files of one"
        )
    return {}


def _patterns_by_split(data_files: object) -> dict[str, list[str]]:
    """Return patterns by split of a card's `data_files`: a pattern or a list of them, which are the
    train split, or a list of mappings with `split` and `path`.
    """
    entries = data_files if isinstance(data_files, list) else [data_files]
    patterns: dict[str, list[str]] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            entry = {"path": entry}
        paths = entry.get("path", [])
        paths = paths if isinstance(paths, list) else [paths]
        patterns.setdefault(entry.get("split", "train"), []).extend(map(str, paths))
    return patterns


def _fits(name: str, patterns: list[str]) -> bool:
    """Return whether a name fits one of some glob patterns."""
    expressions = (glob_translate(pattern.removeprefix("./")) for pattern in patterns)
    return any(re.match(expression, name) for expression in expressions)


def _folder_words(name: str) -> list[str]:
    """Return the words of the folders' names."""
    folders = PurePath(name).parts[:-1]
    return _SEPARATOR.split(" ".join(folders))


def _file_words(name: str) -> list[str]:
    """Return the words of the file's name behind which a separator stands."""
    return _SEPARATOR.split(PurePath(name).name)[:-1]


def _keyword_splits(words: list[str]) -> set[str]:
    return {split for split, keywords in _KEYWORDS.items() if set(keywords).intersection(words)}
