"""Checkpoints of a sharded model on a cluster: each rank uploads its own files.

Determined's `store_path(shard=True)` takes folders of two machines with one (st_dev, st_ino) for
the same, and loses one. A restart downloads a checkpoint once to each machine, whatever part of it
its ranks read.
"""

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist
from determined import core
from determined.errors import CheckpointNotFound

from detalbert.engine.determined_internals import CheckpointContext
from detalbert.errors import Unavailable, UserError, first_line
from detalbert.sums import Json
from detalbert.training.manifest import describe_files, find_fault, write_manifest

STATE = "state.json"


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
    """Determined's checkpoint context, with a folder on each rank."""

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

    @contextlib.contextmanager
    def restore_path(self, storage_id: str, *_: object, **__: object) -> Iterator[Path]:
        """Yield a folder with a checkpoint, on all ranks of a machine. Raises UserError, naming the
        file, if one is damaged.
        """
        try:
            with super().restore_path(storage_id) as path:
                # One rank of each machine compares the sums.
                is_first = self.distributed.local_rank == 0
                fault = find_fault(path) if is_first else None
                for machine_fault in filter(None, self.distributed.allgather(fault)):
                    raise UserError(
                        machine_fault,
                        key=f"checkpoint {storage_id}",
                        cure="go on from another one (searcher.source_checkpoint_uuid), or start "
                        "anew",
                    )
                yield path
        except CheckpointNotFound as error:
            raise UserError(first_line(error), key=f"checkpoint {storage_id}") from None
