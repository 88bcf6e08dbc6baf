"""Table of a sharded checkpoint: file, offset and length of each chunk of each tensor.

`tensors.json` is data. In checkpoints of commit 596c121 and before, torch pickled the table as
`.metadata`, which is read here without running the code that it names.
"""

import enum
import json
import math
import pickle
import re
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo  # as torch's reader wants them
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from detalbert.errors import UserError, first_line

TABLES = TABLE, _PICKLED = "tensors.json", ".metadata"
_DTYPES = "float32 bfloat16 float16 int64 uint8 bool"
# What torch's pickle of a table of tensors names.
_METADATA = "torch.distributed.checkpoint.metadata"
_NAMES = {
    _METADATA: "Metadata TensorStorageMetadata ChunkStorageMetadata TensorProperties MetadataIndex "
    "StorageMeta _MEM_FORMAT_ENCODING",
    "torch.distributed.checkpoint.filesystem": "_StorageInfo",
    "torch.serialization": "_get_layout",
    "torch": f"Size {_DTYPES}",
}
_KNOWN = {(module, name) for module, names in _NAMES.items() for name in names.split()}


def find_table(folder: Path) -> Path:
    """Return the path of a checkpoint's table, existing or not."""
    pickled = folder / _PICKLED
    return pickled if pickled.is_file() and not (folder / TABLE).is_file() else folder / TABLE


def is_sharded(folder: Path) -> bool:
    """Return whether `folder` is a checkpoint of a sharded model."""
    return find_table(folder).is_file()


def write_table(folder: Path, metadata: Metadata) -> None:
    (folder / TABLE).write_text(json.dumps(_describe(metadata)))


def read_table(folder: Path) -> Metadata:
    """Return a checkpoint's table in the form that torch's planners and readers need.

    Raises UserError if it is missing or damaged, names a file outside the folder, or holds more
    than tensors.
    """
    path = find_table(folder)
    try:
        with path.open("rb") as file:
            tensors = json.load(file) if path.name == TABLE else _describe(_Unpickler(file).load())
        return _parse(tensors)
    except Exception as error:  # a damaged table raises anything
        reason = first_line(error)[:100]
        raise UserError(f"{path}: not loaded: {reason}; give another checkpoint") from None


def _describe(metadata: Any) -> dict[str, Any]:
    tensors = {}
    for name, tensor in metadata.state_dict_metadata.items():
        chunks = []
        for chunk in tensor.chunks:
            place = metadata.storage_data[MetadataIndex(name, chunk.offsets)]
            where = {"file": place.relative_path, "start": place.offset, "bytes": place.length}
            chunks.append({"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), **where})
        dtype = str(tensor.properties.dtype).removeprefix("torch.")
        tensors[name] = {"dtype": dtype, "shape": list(tensor.size), "chunks": chunks}
    return tensors


def _parse(tensors: Any) -> Metadata:
    """Reverse `_describe`, for untrusted input. Raises any exception if that is malformed."""
    entries: dict[str, Any] = {}
    places = {}
    for name, tensor in tensors.items():
        if tensor["dtype"] not in _DTYPES.split():
            raise ValueError(f"{name} is of an unknown type")
        shape, chunks = _size(tensor["shape"]), []
        for chunk in tensor["chunks"]:
            offsets, sizes = _size(chunk["offsets"]), _size(chunk["sizes"])
            if any(o + n > end for o, n, end in zip(offsets, sizes, shape, strict=True)):
                raise ValueError(f"a chunk of {name} is larger than the tensor")
            if not re.fullmatch(r"__[0-9]+_[0-9]+\.distcp", chunk["file"]):
                raise ValueError(f"{name} is in {chunk['file']!r}, which is no file of its own")
            chunks.append(ChunkStorageMetadata(offsets, sizes))
            start, length = _size([chunk["start"], chunk["bytes"]])
            places[MetadataIndex(name, offsets)] = _StorageInfo(chunk["file"], start, length)
        if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
            raise ValueError(f"the chunks of {name} are not the whole tensor")
        properties = TensorProperties(getattr(torch, tensor["dtype"]))
        entries[name] = TensorStorageMetadata(properties, shape, chunks)
    return Metadata(entries, storage_data=places)


def _size(numbers: Any) -> torch.Size:
    if type(numbers) is not list or not all(type(n) is int and 0 <= n < 2**63 for n in numbers):
        raise ValueError("a size or place is not a whole number")
    return torch.Size(numbers)


def _member(kind: Any, name: str) -> Any:
    """Return an enum's member: the `getattr` by which CPython 3.11.2 pickles one."""
    if not (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        raise pickle.UnpicklingError("it holds more than tensors: builtins.getattr")
    return kind[name]


_STAND_INS: dict[tuple[str, str], Any] = {
    ("builtins", "getattr"): _member,
    **dict.fromkeys([("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")], PurePosixPath),
}


class _Unpickler(pickle._Unpickler):
    """Unpickler that resolves only the names in torch's tables.

    In Python, as pickle's C code would allocate a list of gigabytes for a damaged number.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _STAND_INS:
            return _STAND_INS[module, name]
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"it holds more than tensors: {module}.{name}")
        return super().find_class(module, name)
