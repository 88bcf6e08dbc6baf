"""Table of a sharded checkpoint: file, offset and length of each chunk of each tensor.

torch pickles this table, and whoever loads a pickle runs the code that it names. `tensors.json` is
data instead. The price is that torch's `dcp.load` cannot read the folder by itself: parts.py gives
it the table in torch's own classes.
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo  # as torch's reader wants them
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from detalbert.errors import UserError, first_line
from detalbert.sums import Json

TABLE = "tensors.json"
_DTYPES = ("float32", "bfloat16", "float16", "int64", "uint8", "bool")


def is_sharded(folder: Path) -> bool:
    """Return whether `folder` is a checkpoint of a sharded model."""
    return (folder / TABLE).is_file()


def write_table(folder: Path, metadata: Metadata) -> None:
    """Write the table of a checkpoint that torch has saved into `folder`."""
    # Nothing but tensors is saved, so each entry is a TensorStorageMetadata.
    entries = cast(Mapping[str, TensorStorageMetadata], metadata.state_dict_metadata)
    tensors = {}
    for name, tensor in entries.items():
        chunks = []
        for chunk in tensor.chunks:
            index = MetadataIndex(name, offset=chunk.offsets)
            place = metadata.storage_data[index]
            chunks.append(
                {
                    "offsets": list(chunk.offsets),
                    "sizes": list(chunk.sizes),
                    "file": place.relative_path,
                    "start": place.offset,
                    "bytes": place.length,
                }
            )
        tensors[name] = {
            "dtype": str(tensor.properties.dtype).removeprefix("torch."),
            "shape": list(tensor.size),
            "chunks": chunks,
        }
    (folder / TABLE).write_text(json.dumps(tensors))


def read_table(folder: Path) -> Metadata:
    """Return a checkpoint's table in the form that torch's planners and readers need.

    Raises:
        UserError: it is missing or damaged, or names a file outside the folder.
    """
    path = folder / TABLE
    try:
        return _parse(json.loads(path.read_text(encoding="utf-8")))
    except Exception as error:  # a damaged table raises anything
        raise UserError(
            f"not loaded: {first_line(error)[:100]}", key=str(path), cure="give another checkpoint"
        ) from None


def _parse(tensors: Json) -> Metadata:
    """Reverse `write_table`, for untrusted input. Raises any exception if that is malformed."""
    entries: dict[str, STORAGE_TYPES] = {}
    places: dict[MetadataIndex, _StorageInfo] = {}
    for name, tensor in tensors.items():
        if tensor["dtype"] not in _DTYPES:
            raise ValueError(f"{name} is of an unknown type")
        shape = _size(tensor["shape"])
        chunks = []
        for written in tensor["chunks"]:
            chunk = _parse_chunk(name, written, shape=shape)
            chunks.append(chunk)
            start, length = _size([written["start"], written["bytes"]])
            index = MetadataIndex(name, offset=chunk.offsets)
            places[index] = _StorageInfo(written["file"], offset=start, length=length)

        # Chunks do not overlap, so as many numbers as the tensor has are all of it.
        count = sum(math.prod(chunk.sizes) for chunk in chunks)
        if count != math.prod(shape):
            raise ValueError(f"the chunks of {name} are not the whole tensor")
        properties = TensorProperties(dtype=getattr(torch, tensor["dtype"]))
        entries[name] = TensorStorageMetadata(properties=properties, size=shape, chunks=chunks)
    return Metadata(entries, storage_data=places)


def _parse_chunk(name: str, chunk: Json, shape: torch.Size) -> ChunkStorageMetadata:
    """Return where in tensor `name` a chunk lies, which must be inside it and in a part's file."""
    offsets = _size(chunk["offsets"])
    sizes = _size(chunk["sizes"])
    for offset, size, end in zip(offsets, sizes, shape, strict=True):
        if offset + size > end:
            raise ValueError(f"a chunk of {name} is larger than the tensor")
    # torch's own names: any other, or one with a path, would read a file of somebody's choice.
    if not re.fullmatch(r"__[0-9]+_[0-9]+\.distcp", chunk["file"]):
        raise ValueError(f"{name} is in {chunk['file']!r}, which is no file of its own")
    return ChunkStorageMetadata(offsets=offsets, sizes=sizes)


def _size(numbers: object) -> torch.Size:
    """Return a list of sizes or offsets as torch has it. Raises ValueError for anything else."""
    if type(numbers) is not list or not all(map(_is_size, numbers)):
        raise ValueError("a size or place is not a whole number")
    return torch.Size(numbers)


def _is_size(number: object) -> bool:
    return type(number) is int and 0 <= number < 2**63
