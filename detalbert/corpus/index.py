"""Files of a folder of shards, here or in a bucket: its index, and those that it names.

An index comes from other machines, and files that it names may be written here: so it is checked
for its own sum and for the names of files before anything in it is used. Remote files are copied
once per machine, whole, below `data.cache_dir`. (fsspec's `filecache` writes under the final name
while it downloads, so another rank would map half a file.)
"""

import hashlib
import json
import re
import shutil
from pathlib import Path

from detalbert import addresses
from detalbert.errors import Unavailable, UserError, as_user_error
from detalbert.files import cached_folder, whole_file
from detalbert.settings.text import CorpusConfig
from detalbert.sums import Json, checksum, is_sealed, json_sum, seal

FORMAT = 2  # raise it when the columns or their meaning change
INDEX = "index.json"
TOKENIZER = "tokenizer"  # folder beside the shards
SPLITS = ("train", "validation")
_FILE = re.compile(r"(train|validation)-[\d-]+\.\w+\.npy|tokenizer/\w[\w.-]*")


def load_sealed(address: str) -> Json | None:
    """Return the values of a sealed file, local or remote; None if it is missing or damaged. Raises
    Unavailable if a server fails.
    """
    try:
        with as_user_error(addresses.unreadable(address)), addresses.open_bytes(address) as file:
            values = json.loads(file.read())
        return values if is_sealed(values) else None
    except Unavailable:
        raise
    except (UserError, AttributeError):
        return None


def write_file(address: str, name: str, content: bytes | memoryview) -> str:
    """Write a file at `address`, whole or not at all; return its SHA-256. Raises OSError."""
    system, root = addresses.open_system(address)
    path = Path(root, name)
    if addresses.is_remote(address):
        with system.open_output_stream(str(path)) as file:
            file.write(content)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as temporary:
            temporary.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def write_sealed(address: str, name: str, values: Json) -> None:
    """Write values with their sum, for `load_sealed`. Raises OSError."""
    write_file(address, name, json.dumps(seal(values), indent=1).encode())


def read_index(address: str) -> Json:
    """Return the index of the shards at `address`. Its `files` are SHA-256 by the names of files.

    Raises:
        UserError: it is missing, damaged, or of another format.
        Unavailable: a server fails.
    """
    index = load_sealed(f"{address}/{INDEX}") or {}
    is_safe = all(map(_FILE.fullmatch, index.get("files", ())))
    if index.get("format") != FORMAT or not is_safe:
        problem = f"{address}: no {INDEX} there, or one that is damaged or of another version"
        raise UserError(problem, key="data.shards", cure="write the shards again")
    return index


def fetch_files(address: str, index: Json, names: list[str], cache_dir: str) -> Path:
    """Return the folder of files at `address`; if that is remote, of copies below `cache_dir`.

    Raises:
        UserError: a file is not as it was written, or cannot be copied.
        Unavailable: a server fails.
    """
    if not addresses.is_remote(address):
        return Path(address)

    def copy(folder: Path) -> None:
        for name in names:
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            source = f"{address}/{name}"
            with (
                path.open("wb") as file,
                as_user_error(addresses.unreadable(source)),
                addresses.open_bytes(source) as remote_file,
            ):
                shutil.copyfileobj(remote_file, file)
            if checksum(path) != index["files"][name]:
                problem = f"{name} is not as it was written"
                raise UserError(problem, key=address, cure="upload it again")

    key = json_sum([address, index["sha256"], names])
    folder = Path(cache_dir) / f"fetched-{key[:24]}"
    return cached_folder(folder, key=key, build=copy, what="token shards")


def fetch_tokenizer(data: CorpusConfig) -> Path:
    """Return the folder of the tokenizer of `data.shards`, on this machine. Raises as
    `fetch_files`.
    """
    address = data.shards or ""
    index = read_index(address)
    names = [name for name in index["files"] if name.startswith(TOKENIZER)]
    return fetch_files(address, index, names, data.cache_dir) / TOKENIZER
