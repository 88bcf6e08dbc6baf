"""The index of a folder of shards, and the tokenizer beside it."""

import json
import logging
import re
from pathlib import Path
from typing import Any

from detalbert.atomic import alone, whole_folder, writing
from detalbert.corpus.shards import FILES, FORMAT, file_sums
from detalbert.errors import UserError
from detalbert.integrity import SUM, find_damaged, is_sealed
from detalbert.names import hold
from detalbert.reading import storage
from detalbert.settings.text import CorpusConfig

# Of an index that commit 596c121 wrote, without a sum of its own.
_KEYS = "format kind max_seq_length tokenizer end_of_text part_bytes held_out text splits".split()
TOKENIZER = "tokenizer"  # folder of a corpus
log = logging.getLogger(__name__)


def read_index(address: str) -> dict[str, Any]:
    """Return the index of the shards at `address`. Raises UserError if missing or invalid."""
    try:
        index = json.loads(storage.read_all(storage.join(address, "index.json")))
        version = index["format"]
        assert is_sealed(index) if SUM in index else index.keys() <= set(_KEYS)
        if version == FORMAT:
            assert {"tokenizer", "text", "splits"} <= set(index)
            assert {"max_seq_length", "kind"} & set(index)
            # Some are removed and written again if they are damaged: none may be another's file.
            names = [path.as_posix() for path in file_sums(Path(), index)]
            assert all(re.fullmatch(FILES, name) for name in names)
    except UserError:
        said = "no index.json there; give a folder of shards that were written to their end"
        raise UserError(f"data.shards: {address}: {said}") from None
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise UserError(f"data.shards: {address}: its index.json is damaged") from None
    if version != FORMAT:
        said = f"format {version}, this version reads {FORMAT}; write again"
        raise UserError(f"data.shards: {address}: {said}")
    return index


def fetch_tokenizer(data: CorpusConfig) -> Path:
    """Return the folder of the tokenizer in `data.shards`, fetched if that is remote. Raises
    UserError if there is none.
    """
    assert data.shards is not None
    address = storage.join(data.shards, TOKENIZER)
    folder = Path(address)
    files = []
    if storage.is_remote(address):
        folder = Path(data.cache_dir) / f"tokenizer-{read_index(data.shards)['tokenizer'][:24]}"
        with writing(folder, what="the tokenizer"), alone(folder):
            if not folder.is_dir() and (files := storage.list_files(address, "data.shards")):
                with whole_folder(folder) as aside:
                    for file in files:
                        name = Path(file.address).name
                        hold(aside, name, address).write_bytes(storage.read_all(file.address))
    if not folder.is_dir():
        said = f"data.tokenizer: missing, and {address} is not there; name the shards' own"
        raise UserError(said)
    return folder


def remove_damaged(folder: Path) -> None:
    """Remove damaged files of finished shards, and the index of their folder."""
    index = folder / "index.json"
    if not index.is_file():
        return
    try:
        damaged = find_damaged(file_sums(folder, read_index(str(folder))), folder)
    except UserError:
        damaged = [index]
    if damaged:
        more = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
        log.warning("%s%s: not as it was written; writing it again", damaged[0], more)
        for path in (*damaged, index):
            path.unlink(missing_ok=True)
