"""Compressed files as streams, which can be read only from the start.

Consecutive ranges of one file, read by one process, continue one stream. A read that begins before
the kept blocks restarts at the file's first byte.
"""

import io
import os
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from detalbert.corpus import storage
from detalbert.errors import UserError, first_line

CODECS = {".zst": "zstd", ".gz": "gzip"}  # as pyarrow calls them, which reads them


def read(address: str, size: int, begin: int, keep: int) -> Iterator[bytes]:
    """Yield the content of a compressed file of `size` bytes from byte `begin` of the content, in
    blocks.

    `keep`: the next read will begin here or later. Raises UserError if the file is damaged.
    """
    if begin == 0 or not _last(os.getpid(), address, size).holds(begin):
        _last.cache_clear()
    yield from _last(os.getpid(), address, size).read(begin, keep)


def count_bytes(address: str, size: int) -> int:
    """Return the uncompressed size of a file of `size` bytes. Raises UserError if it is damaged."""
    return sum(map(len, _Stream(address, size).read(0, keep=1 << 62)))


class _Stream:
    """A compressed file, read from its start; blocks from `keep` on are kept."""

    def __init__(self, address: str, size: int) -> None:
        import pyarrow

        self.address, self.at = address, 0  # byte of the content that comes next
        source = pyarrow.PythonFile(_Blocks(storage.read(address, 0, size)), "r")
        codec = CODECS[os.path.splitext(address)[1]]
        self.file: Any = pyarrow.CompressedInputStream(source, codec)
        self.kept: deque[tuple[int, bytes]] = deque()  # (its first byte, block)

    def holds(self, begin: int) -> bool:
        return begin >= (self.kept[0][0] if self.kept else self.at)

    def read(self, begin: int, keep: int) -> Iterator[bytes]:
        for first, block in list(self.kept):
            if first + len(block) > begin:
                yield block[max(0, begin - first) :]
        while block := self._next():
            first, self.at = self.at, self.at + len(block)
            self.kept.append((first, block))
            while self.kept and sum((self.kept[0][0], len(self.kept[0][1]))) <= keep:
                self.kept.popleft()
            if self.at > begin:
                yield block[max(0, begin - first) :]

    def _next(self) -> bytes:
        try:
            return self.file.read(storage.BLOCK)
        except OSError as error:
            raise UserError(
                f"{self.address}: damaged, or not what its name says: {first_line(error)}; copy "
                "it again"
            ) from None


@lru_cache(maxsize=1)
def _last(process: int, address: str, size: int) -> _Stream:
    """Return the stream of `process`; after a fork, a child must not share its parent's file."""
    return _Stream(address, size)


class _Blocks(io.RawIOBase):
    """File interface to an iterator of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks, self.rest = blocks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self.rest:
            self.rest = memoryview(next(self.blocks, b""))
        given, self.rest = self.rest[:size], self.rest[size:]
        return bytes(given)
