"""Files over exact reads of `storage`: as streams, unpacked, and for random access."""

import io
import os
from collections.abc import Iterator
from typing import Any

import pyarrow

from detalbert.corpus import storage
from detalbert.corpus.storage import CODECS
from detalbert.errors import UserError, first_line


def unpack(address: str, size: int) -> Iterator[bytes]:
    """Yield the content of a compressed file of `size` bytes in blocks. Raises UserError if it is
    damaged.
    """
    packed = as_file(storage.read(address, 0, size))
    try:
        with pyarrow.input_stream(packed, CODECS[os.path.splitext(address)[1]]) as file:
            while block := file.read(storage.BLOCK):
                yield block
    except OSError as error:
        raise UserError(
            f"{address}: damaged, or not what its name says: {first_line(error)}; copy it again"
        ) from None


def open_file(address: str) -> Any:
    """Return a file, its content if it is compressed, for random access."""
    remote = storage.is_remote(address)
    size = storage.list_files(address, address)[0].size if remote else os.path.getsize(address)
    if address.endswith(tuple(CODECS)):
        return io.BytesIO(b"".join(unpack(address, size)))
    return io.BufferedReader(_Ranges(address, size), storage.BLOCK)


class _Ranges(io.RawIOBase):
    """File interface to exact ranges of an address."""

    def __init__(self, address: str, size: int) -> None:
        self.address, self.size, self.at = address, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), self.size - self.at)
        buffer[:count] = b"".join(storage.read(self.address, self.at, self.at + count))
        self.at += count
        return count


def as_file(blocks: Iterator[bytes]) -> io.BufferedReader:
    """Return `blocks` as a file. A line of any length is read in linear time."""
    return io.BufferedReader(_Blocks(blocks), storage.BLOCK)


class _Blocks(io.RawIOBase):
    """File interface to an iterator of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks, self.rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.rest = self.rest or memoryview(next(self.blocks, b""))
        count = min(len(buffer), len(self.rest))
        buffer[:count], self.rest = self.rest[:count], self.rest[count:]
        return count
