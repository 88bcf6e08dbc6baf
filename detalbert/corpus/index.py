"""The index of a folder of shards, and the files that it names, on this machine.

An index comes from other machines, and files that it names may be written here: so it is checked
for its own sum and for the names of files before anything in it is used. Remote files are copied
once per machine, whole, below `data.cache_dir`. (fsspec's `filecache` writes under the final name
while it downloads, so another rank would map half a file.)
"""

import json
import re
import shutil
from pathlib import Path

from detalbert import records
from detalbert.errors import Unavailable, UserError, as_user_error
from detalbert.files import cached_folder
from detalbert.settings.text import CorpusConfig
from detalbert.sums import Json, checksum, is_sealed, json_sum

FORMAT = 2  # raise it when the columns or their meaning change
INDEX = "index.json"
TOKENIZER = "tokenizer"  # folder beside the shards
SPLITS = ("train", "validation")
_FILE = re.compile(rf"({'|'.join(SPLITS)})-[\d-]+\.\w+\.npy|{TOKENIZER}/\w[\w.-]*")


def read_index(address: str) -> Json:
    """Return the index of the shards at `address`. Its `files` are SHA-256 by the names of files.

    Raises:
        UserError: it is missing, damaged, or of another format.
        Unavailable: a server fails.
    """
    problem = f"its {INDEX} is damaged"
    path = f"{address}/{INDEX}"
    try:
        with as_user_error(records.unreadable(path)), records.open_bytes(path) as file:
            content = file.read()
        index = json.loads(content)
        # What is damaged may be of any type, and lack any key.
        if index["format"] != FORMAT:
            problem = f"format {index['format']}, this version reads {FORMAT}"
        elif is_sealed(index) and all(map(_FILE.fullmatch, index["files"])):
            return index
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    except UserError as error:
        if isinstance(error, Unavailable):
            raise
        problem = f"no {INDEX} there"
    raise UserError(f"{address}: {problem}", key="data.shards", cure="write the shards again")


def fetch_files(address: str, index: Json, names: list[str], cache_dir: str) -> Path:
    """Return the folder of files at `address`; if that is remote, of copies below `cache_dir`.

    Raises:
        UserError: a file is not as it was written, or cannot be copied.
        Unavailable: a server fails.
    """
    if not records.is_remote(address):
        return Path(address)

    def copy(folder: Path) -> None:
        for name in names:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            source_address = f"{address}/{name}"
            with (
                path.open("wb") as file,
                as_user_error(records.unreadable(source_address)),
                records.open_bytes(source_address) as source,
            ):
                shutil.copyfileobj(source, file)
            if checksum(path) != index["files"][name]:
                problem = f"{name} is not as it was written"
                raise UserError(problem, key=address, cure="upload it again")

    key = json_sum([address, index["sha256"], names])
    folder = Path(cache_dir) / f"fetched-{key[:24]}"
    return cached_folder(folder, key=key, build=copy, what="token shards")


def fetch_tokenizer(data: CorpusConfig) -> Path:
    """Return the folder of the tokenizer of `data.shards`, on this machine. Raises as `fetch`."""
    address = data.shards or ""
    index = read_index(address)
    names = [name for name in index["files"] if name.startswith(TOKENIZER)]
    return fetch_files(address, index, names, data.cache_dir) / TOKENIZER
