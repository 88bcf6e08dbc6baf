"""The place of a corpus that is being written: a folder, or a bucket. Methods raise OSError."""

import hashlib
import json
from pathlib import Path

from fsspec.implementations.arrow import ArrowFSWrapper

from detalbert import records
from detalbert.files import whole_file
from detalbert.sums import Json, is_sealed, seal


class Output:
    """Files by name below an address; a file is there whole, or not at all."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_remote = records.is_remote(address)
        system, self.root = records.open_system(address)
        self.system = ArrowFSWrapper(system)

    def names(self) -> list[str]:
        """Return the names of the files that are there."""
        return [path.removeprefix(f"{self.root}/") for path in self.system.find(self.root)]

    def read_json(self, name: str) -> Json | None:
        """Return the values of a sealed file; None if it is missing or damaged."""
        try:
            values = json.loads(self.system.cat_file(f"{self.root}/{name}"))
            return values if is_sealed(values) else None
        except (FileNotFoundError, ValueError, AttributeError):
            return None

    def write_json(self, name: str, values: Json) -> None:
        """Write a sealed file."""
        self.write(name, json.dumps(seal(values), indent=1).encode())

    def write(self, name: str, content: bytes | memoryview) -> str:
        """Write a file; return its SHA-256."""
        path = f"{self.root}/{name}"
        if self.is_remote:
            self.system.pipe_file(path, content)
        else:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            with whole_file(Path(path), binary=True) as file:
                file.write(content)
        return hashlib.sha256(content).hexdigest()
