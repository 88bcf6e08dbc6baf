"""Checkpoints of a sharded model on a cluster: each rank uploads its own files.

Determined's `store_path(shard=True)` takes folders of two machines with one (st_dev, st_ino) for
the same, and loses one. Here rank 0 checks what has arrived before it reports to the master.
"""

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from determined import core
from determined.common import storage
from determined.errors import CheckpointNotFound

from detalbert.determined_internals import CheckpointContext
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.training.manifest import MANIFEST, describe_files, find_fault, write_manifest
from detalbert.training.parts import NUMBERS
from detalbert.training.table import TABLE

STATE = "state.json"
_HEAD = {TABLE, NUMBERS, STATE, MANIFEST}  # what says which of the other files a process reads


class Peers:
    """Determined's distributed context, as far as checkpoints need it, over a group of its own: the
    training loop uses Determined's single socket at the same time.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, group.rank(), group.size()

    def allgather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.group)
        return found

    def broadcast(self, value: Any) -> Any:
        return self.allgather(value)[0]


class UploadedParts(CheckpointContext):
    """Determined's checkpoint context, with a folder on each rank. `needed` returns the files that
    this rank reads, given a folder with a checkpoint's table and state.
    """

    def __init__(self, theirs: core.CheckpointContext, needed: Callable[[Path], set[str]]) -> None:
        super().__init__(theirs)
        self.needed = needed

    @contextlib.contextmanager
    def store_together(self, metadata: dict[str, Any], peers: Any) -> Iterator[tuple[Path, str]]:
        """Yield a folder of this rank alone, uploaded at the end, and its UUID (rank 0's). `peers`
        are a Peers, or Determined's distributed context.
        """
        steps, name = metadata["steps_completed"], str(uuid.uuid4())
        folder = Path(tempfile.mkdtemp(prefix="checkpoint-"))
        folder.chmod(0o755)  # a shared file system gets its mode, for other users to read, too
        try:
            yield folder, name
            everywhere = peers.allgather(describe_files(folder))
            if peers.rank == 0:
                files = {name: facts for found in everywhere for name, facts in found.items()}
                write_manifest(folder, {"steps": steps}, files)
            name = peers.broadcast(name)
            self.upload_as(name, folder, metadata, peers)
        except UserError:
            raise
        except Exception as error:  # whatever the client of a storage raises
            said = f"the checkpoint of step {steps} is not stored ({first_line(error)})"
            cure = "see that it and the temporary folder can be written"
            raise Unavailable(f"checkpoint_storage: {said}; {cure}") from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def report(self, name: str, sizes: dict[str, int], metadata: dict[str, Any]) -> None:
        """Report the checkpoint to the master (rank 0, after all uploads). If a file is missing or
        truncated, delete the checkpoint and raise OSError.
        """
        there = stored_sizes(self.storage, name)
        wrong = [
            f"{file} has {there.get(file, 'no')} of {size} bytes"
            for file, size in sorted(sizes.items())
            if there is not None and not file.endswith("/") and there.get(file) != size
        ]
        if wrong:
            with contextlib.suppress(Exception):  # nobody would ever delete it
                self.storage.delete(name, ["**/*"])
            raise OSError(f"in the storage, {'; '.join(wrong[:3])}")
        super().report(name, sizes, metadata)

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, *_: Any, **__: Any) -> Iterator[Path]:
        """Yield a folder with only the files that this machine's ranks read. Raises UserError,
        naming the file, if one is damaged.
        """
        try:
            with super().restore_path(storage_id, selector=_HEAD.__contains__) as path:
                self._check(path, storage_id, {TABLE, NUMBERS, STATE})
                mine = self.needed(path)
            with super().restore_path(storage_id, selector=(_HEAD | mine).__contains__) as path:
                self._check(path, storage_id, mine)
                yield path
        except CheckpointNotFound as error:
            raise UserError(f"checkpoint {storage_id}: {first_line(error)}") from None

    def _check(self, path: Path, storage_id: str, names: set[str]) -> None:
        """Check `names`; raise UserError on all ranks if any rank finds a fault."""
        faults = [fault for fault in self.distributed.allgather(find_fault(path, names)) if fault]
        if faults:
            cure = "go on from another one (searcher.source_checkpoint_uuid), or start anew"
            raise UserError(f"checkpoint {storage_id}: {faults[0]}; {cure}")


def stored_sizes(manager: storage.StorageManager, storage_id: str) -> dict[str, int] | None:
    """Return the bytes of a checkpoint's files, by name; None for other kinds of storage."""
    if isinstance(manager, storage.S3StorageManager):
        prefix = f"{manager.get_storage_prefix(storage_id)}/"
        found = manager.bucket.objects.filter(Prefix=prefix)
        return {entry.key[len(prefix) :]: entry.size for entry in found}
    if isinstance(manager, storage.SharedFSStorageManager):
        with manager.restore_path(storage_id) as path:
            files = (file for file in path.rglob("*") if file.is_file())
            return {file.relative_to(path).as_posix(): file.stat().st_size for file in files}
    return None
