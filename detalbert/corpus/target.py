"""Places for shards: a folder, or an address to which each shard goes when it is whole."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from detalbert import bucket
from detalbert.corpus import storage
from detalbert.corpus.shards import INDEX, PLAN


class Target(NamedTuple):
    """`folder` is where files are written; `remote`, if any, where they go then.

    What is there is known by its records (`jobs/`), which follow their shards, as in a folder.
    """

    folder: Path
    remote: str | None

    @classmethod
    def of(cls, address: str, cache_dir: str) -> "Target":
        if not bucket.is_bucket(address):
            return cls(Path(address), None)
        key = hashlib.sha256(address.encode()).hexdigest()[:24]
        return cls(Path(cache_dir) / f"writing-{key}", address)

    @property
    def address(self) -> str:
        return self.remote or str(self.folder)

    def open(self) -> None:
        """Fetch plan, records and index of what is there already."""
        if self.remote is None:
            return
        for old in (PLAN, INDEX, "jobs/*.json"):
            for path in self.folder.glob(old):
                path.unlink()
        wanted = (PLAN, INDEX, "jobs/")
        bucket.download(self.remote, self.folder, lambda name: name.startswith(wanted))

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the shards that are there, by name."""
        if self.remote is None:
            return {path.name: path.stat().st_size for path in self.folder.glob("*.bin")}
        start = len(storage.join(self.remote, ""))
        found = storage.list_files(self.remote, "--output")
        return {f.address[start:]: f.size for f in found if f.address.endswith(".bin")}

    def move(self, names: list[str], *last: str) -> None:
        """Upload files, those that make them count last; remove the others here."""
        if self.remote is None:
            return
        for part in (names, last):
            bucket.put(self.folder, self.remote.rstrip("/"), part)
        for name in names:
            (self.folder / name).unlink()
