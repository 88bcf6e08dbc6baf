"""Checkpoints of a sharded model on a cluster: each rank uploads its own files.

Determined's `store_path(shard=True)` takes folders of two machines with one (st_dev, st_ino) for
the same, and loses one. Here rank 0 checks what has arrived before it reports to the master. And a
rank downloads only the files that it reads: a second download, of the table first, for as many
times less traffic as there are machines.
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
from detalbert.sums import Json
from detalbert.training.manifest import MANIFEST, describe_files, find_fault, write_manifest
from detalbert.training.parts import NUMBERS
from detalbert.training.table import TABLE

STATE = "state.json"
# By these a process knows which of the other files it reads.
_HEAD = {TABLE, NUMBERS, STATE, MANIFEST}


class GroupCollectives:
    """Collectives over a process group of their own: the training loop uses Determined's single
    socket at the same time.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = group.rank()
        self.size = group.size()

    def allgather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def broadcast(self, value: Any) -> Any:
        return self.allgather(value)[0]


# By which ranks write a checkpoint together.
Collectives = GroupCollectives | core.DistributedContext


class UploadedParts(CheckpointContext):
    """Determined's checkpoint context, with a folder on each rank. `needed` returns the files that
    this rank reads, given a folder with a checkpoint's table and state.
    """

    def __init__(self, theirs: core.CheckpointContext, needed: Callable[[Path], set[str]]) -> None:
        super().__init__(theirs)
        self.needed = needed

    @contextlib.contextmanager
    def store_together(self, metadata: Json, peers: Collectives) -> Iterator[tuple[Path, str]]:
        """Yield a folder of this rank alone, uploaded at the end, and its UUID (rank 0's)."""
        steps = metadata["steps_completed"]
        name = str(uuid.uuid4())
        folder = Path(tempfile.mkdtemp(prefix="checkpoint-"))
        folder.chmod(0o755)  # a shared file system gets its mode, for other users to read, too
        try:
            yield folder, name

            # The manifest lists the files of all ranks; rank 0 uploads it among its own.
            files_of_ranks = peers.allgather(describe_files(folder))
            if peers.rank == 0:
                files: Json = {}
                for rank_files in files_of_ranks:
                    files |= rank_files
                write_manifest(folder, {"steps": steps}, files=files)
            name = peers.broadcast(name)
            self.upload_as(name, folder, metadata=metadata, peers=peers)
        except UserError:
            raise
        except Exception as error:  # whatever the client of a storage raises
            raise Unavailable(
                f"the checkpoint of step {steps} is not stored ({first_line(error)})",
                key="checkpoint_storage",
                cure="see that it and the temporary folder can be written",
            ) from None
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _report_checkpoint(
        self,
        storage_id: str,
        resources: dict[str, int] | None = None,
        metadata: Json | None = None,
    ) -> None:
        """Report the checkpoint to the master (rank 0, after all uploads). If a file is missing or
        truncated, delete the checkpoint and raise OSError.
        """
        stored = stored_sizes(self.storage, storage_id)
        faults = _wrong_sizes(resources or {}, stored=stored)
        if faults:
            with contextlib.suppress(Exception):  # an unreported one would stay in the storage
                self.storage.delete(storage_id, ["**/*"])
            raise OSError(f"in the storage, {'; '.join(faults[:3])}")
        super()._report_checkpoint(storage_id, resources, metadata)

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, *_: object, **__: object) -> Iterator[Path]:
        """Yield a folder with only the files that this machine's ranks read. Raises UserError,
        naming the file, if one is damaged.
        """
        try:
            # First the table and the state, which say what this rank reads.
            with super().restore_path(storage_id, selector=_HEAD.__contains__) as path:
                self._check(path, storage_id, names={TABLE, NUMBERS, STATE})
                rank_files = self.needed(path)
            # Then that.
            wanted = _HEAD | rank_files
            with super().restore_path(storage_id, selector=wanted.__contains__) as path:
                self._check(path, storage_id, names=rank_files)
                yield path
        except CheckpointNotFound as error:
            raise UserError(first_line(error), key=f"checkpoint {storage_id}") from None

    def _check(self, path: Path, storage_id: str, names: set[str]) -> None:
        """Check `names`; raise UserError on all ranks if any rank finds a fault."""
        fault_by_rank = self.distributed.allgather(find_fault(path, names=names))
        for fault in fault_by_rank:
            if fault:
                raise UserError(
                    fault,
                    key=f"checkpoint {storage_id}",
                    cure="go on from another one (searcher.source_checkpoint_uuid), or start anew",
                )


def _wrong_sizes(sizes: dict[str, int], stored: dict[str, int] | None) -> list[str]:
    """Return a text for each file that is not stored whole; none where that is not known."""
    if stored is None:
        return []
    faults = []
    for file, size in sorted(sizes.items()):
        is_folder = file.endswith("/")
        if not is_folder and stored.get(file) != size:
            faults.append(f"{file} has {stored.get(file, 'no')} of {size} bytes")
    return faults


def stored_sizes(manager: storage.StorageManager, storage_id: str) -> dict[str, int] | None:
    """Return the bytes of a checkpoint's files, by name; None for other kinds of storage."""
    if isinstance(manager, storage.S3StorageManager):
        prefix = f"{manager.get_storage_prefix(storage_id)}/"
        objects = manager.bucket.objects.filter(Prefix=prefix)
        return {stored.key[len(prefix) :]: stored.size for stored in objects}
    if isinstance(manager, storage.SharedFSStorageManager):
        with manager.restore_path(storage_id) as path:
            files = (file for file in path.rglob("*") if file.is_file())
            return {file.relative_to(path).as_posix(): file.stat().st_size for file in files}
    return None
