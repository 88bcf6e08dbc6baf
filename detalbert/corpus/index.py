"""The index of a folder of shards, and the tokenizer beside it.

An index comes from other machines, and files that it names may be removed here: so it is checked
for its own sum and for the names of files before anything in it is used.
"""

import json
import logging
import re
from pathlib import Path
from typing import Any

from detalbert.atomic import alone, whole_folder, writing
from detalbert.corpus.shards import FILES, FORMAT, file_sums
from detalbert.errors import Unavailable, UserError
from detalbert.integrity import find_damaged, is_sealed
from detalbert.names import hold
from detalbert.reading import storage
from detalbert.settings.text import CorpusConfig

_KEY = "data.shards"  # of the config
TOKENIZER = "tokenizer"  # folder of a corpus
log = logging.getLogger(__name__)


def read_index(address: str) -> dict[str, Any]:
    """Return the index of the shards at `address`. Raises UserError if missing or invalid."""
    try:
        content = storage.read_all(storage.join(address, "index.json"))
    except UserError:
        raise UserError(
            f"{address}: no index.json there",
            key=_KEY,
            cure="give a folder of shards that were written to their end",
        ) from None
    try:
        index = json.loads(content)
        # What is damaged may be of any type, and lack any key.
        version = index["format"]
        _check(index)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise UserError(f"{address}: its index.json is damaged", key=_KEY) from None
    if version != FORMAT:
        raise UserError(
            f"{address}: format {version}, this version reads {FORMAT}",
            key=_KEY,
            cure="write again",
        )
    return index


def has_index(address: str) -> bool:
    """Return whether there is an index at `address`: all shards are written."""
    try:
        storage.read_all(storage.join(address, "index.json"))
    except Unavailable:
        raise
    except UserError:
        return False
    return True


def _check(index: dict[str, Any]) -> None:
    """Raise AssertionError, or another class of error, if an index is damaged."""
    assert is_sealed(index)
    if index["format"] == FORMAT:
        assert {"tokenizer", "text", "splits"} <= set(index)
        assert {"max_seq_length", "kind"} & set(index)
        # Some are removed and written again if they are damaged: none may be another's file.
        names = [path.as_posix() for path in file_sums(Path(), index)]
        assert all(re.fullmatch(FILES, name) for name in names)


def fetch_tokenizer(data: CorpusConfig) -> Path:
    """Return the folder of the tokenizer in `data.shards`, fetched if that is remote. Raises
    UserError if there is none.
    """
    assert data.shards is not None
    address = storage.join(data.shards, TOKENIZER)
    folder = Path(address)
    if storage.is_remote(address):
        index = read_index(data.shards)
        folder = Path(data.cache_dir) / f"tokenizer-{index['tokenizer'][:24]}"
        with writing(folder, what="the tokenizer"), alone(folder):
            if not folder.is_dir():
                _download(address, folder)
    if not folder.is_dir():
        raise UserError(
            f"missing, and {address} is not there",
            key="data.tokenizer",
            cure="name the shards' own",
        )
    return folder


def _download(address: str, folder: Path) -> None:
    """Download the files below an address, if there are any, as a folder."""
    files = storage.list_files(address, key=_KEY)
    if not files:
        return
    with whole_folder(folder) as temporary:
        for file in files:
            name = Path(file.address).name
            path = hold(temporary, name, address)
            path.write_bytes(storage.read_all(file.address))


def remove_damaged(folder: Path) -> None:
    """Remove damaged files of finished shards, and the index of their folder."""
    index = folder / "index.json"
    if not index.is_file():
        return
    try:
        sums = file_sums(folder, read_index(str(folder)))
        damaged = find_damaged(sums, folder)
    except UserError:
        damaged = [index]
    if damaged:
        others = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        log.warning("%s%s: not as it was written; writing it again", damaged[0], others)
        for path in (*damaged, index):
            path.unlink(missing_ok=True)
