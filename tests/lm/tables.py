"""Tables of sharded checkpoints as commit 596c121 wrote them."""

import enum
import io
import pickle
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from detalbert.training.table import TABLE, read_table


class Pickler311(pickle.Pickler):
    """Pickles a member of an enum as CPython 3.11.2 does; later ones name its value."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return getattr, (type(value), value.name)
        return NotImplemented


def pickled(
    metadata: Metadata, kind: type[pickle.Pickler] = Pickler311, protocol: int = 4
) -> bytes:
    """`.metadata` as torch writes it with a Python of this kind."""
    metadata.storage_meta = StorageMeta(Path("folder"), "id")
    metadata.planner_data = {name: tuple(name.split(".")) for name in metadata.state_dict_metadata}
    buffer = io.BytesIO()
    kind(buffer, protocol).dump(metadata)
    return buffer.getvalue()


def write_as_before(folder: Path) -> None:
    """Turn the table of a checkpoint into that of 596c121 on CPython 3.11.2."""
    (folder / ".metadata").write_bytes(pickled(read_table(folder)))
    (folder / TABLE).unlink()
