"""Files of this machine, of `s3://` and of any other address that fsspec knows: list and read.

S3 is read with boto3, which Determined installs. s3fs needs an aiobotocore that pins another
botocore than Determined runs on, so the two cannot be installed together. Every read requests an
exact range, and resumes at the first missing byte after a failure.
"""

import fnmatch
import glob
import io
import os
import re
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import fsspec
from fsspec.spec import AbstractBufferedFile

from detalbert.bucket import MISTAKES, http_status
from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.integrity import checksum

BLOCK = 1 << 20  # bytes per read
TRIES = 6  # in a row without a single byte; then a read fails
_WHOLE = 64 << 20  # bytes; files up to this size are known by their content: others are read once
_PATTERN = re.compile(r"[*?\[]")
BROKEN_LINK = "a link to what is not there"  # stamp of such a link


class File(NamedTuple):
    """A file or object: `address`, size in bytes, and a stamp that changes with its content."""

    address: str
    size: int
    stamp: str


def is_remote(address: str) -> bool:
    """Return whether `address` has a protocol, such as s3://."""
    return "://" in address


def join(folder: str, name: str) -> str:
    """Return the address of the file `name` in `folder`, local or remote."""
    return f"{folder.rstrip('/')}/{name}"


def prefix_of(address: str) -> str:
    """Return an address as `list_files` writes those of its files: ./a as a, memory://a as
    memory:///a.
    """
    if not is_remote(address):
        path = str(Path(address))
        return "" if path == "." else path
    if address.startswith("s3://"):
        return address.rstrip("/")
    system = _fsspec(address)
    return str(system.unstrip_protocol(system._strip_protocol(address)))


def list_files(address: str, key: str) -> list[File]:
    """Return the file that `address` names, or those below it, or that fit it as a pattern with
    `*`. Raises UserError, naming the config `key`, or Unavailable if a server fails.
    """

    def not_listed(error: Exception) -> UserError:
        kind = UserError if http_status(error) in MISTAKES else Unavailable
        return kind(f"{address} cannot be listed: {first_line(error)}", key=key)

    if not address:
        raise UserError("it is empty", key=key, cure="name a file or a folder")
    if not is_remote(address):
        return _list_local(address, key)
    list_remote = _list_s3 if address.startswith("s3://") else _list_fsspec
    with as_user_error(not_listed):
        return list_remote(address)


def read(address: str, begin: int, end: int) -> Iterator[bytes]:
    """Yield bytes begin..end (exclusive) in blocks. Raises Unavailable after TRIES failed reads."""
    # Progress of a single byte resets the count: a slow server is no failed one.
    failures = 0  # in a row
    reason = ""
    while begin < end:
        try:
            for block in _blocks(address, begin, end):
                begin += len(block)
                failures = 0
                yield block
                if begin >= end:
                    return
            reason = f"the body ended {end - begin:,} bytes early"
        except Exception as error:  # whatever a library raises: time-outs, 500s, cut connections
            reason = first_line(error)
            if not is_remote(address) or isinstance(error, FileNotFoundError):
                raise UserError(f"cannot read it: {reason}", key=address) from None

        # Try again from the first missing byte, after 0.2, 0.4, ... seconds.
        failures += 1
        if failures >= TRIES:
            raise Unavailable(f"not read after {TRIES} tries: {reason}", key=address)
        pause = 0.1 * 2**failures
        time.sleep(min(5.0, pause))


def read_all(address: str) -> bytes:
    """Return the whole file. Raises UserError if it does not exist or cannot be read."""

    def not_read(error: Exception) -> UserError:
        return UserError(f"cannot read it: {first_line(error)}", key=address)

    if not is_remote(address):
        with as_user_error(not_read):
            return Path(address).read_bytes()
    files = list_files(address, key=address)
    if not files:
        raise UserError("no such file", key=address, cure="correct the address")
    return b"".join(read(address, begin=0, end=files[0].size))


def _blocks(address: str, begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of one request, without another try."""
    if address.startswith("s3://"):
        bucket, _, key = address.removeprefix("s3://").partition("/")
        response = _s3(os.getpid()).get_object(
            Bucket=bucket,
            Key=key,
            Range=f"bytes={begin}-{end - 1}",
        )
        yield from response["Body"].iter_chunks(BLOCK)
        return
    open_file = _fsspec(address).open if is_remote(address) else open
    with open_file(address, "rb") as file:
        file.seek(begin)
        while begin < end:
            block = file.read(min(BLOCK, end - begin))
            if not block:  # the file is shorter
                return
            begin += len(block)
            yield block


def find_paths(address: str) -> list[Path]:
    """Return the files of this machine that `address` names, as file, folder or pattern."""
    return [path for path in _find_members(address) if path.is_file()]


def _find_members(address: str) -> list[Path]:
    """Return the files below an address and the links to nothing, each once. Links to folders are
    followed; a folder to which several ways lead is listed once, so no circle is endless.
    """
    path = Path(address)
    if path.exists():
        roots = [path]
    else:
        roots = [Path(name) for name in glob.glob(address, recursive=True)]

    members: dict[Path, None] = {}  # a pattern may fit a folder and a file in it
    visited: set[str] = set()  # real folders
    for root in roots:  # links to folders are added at the end: real ones come first
        if not root.is_dir():
            members[root] = None
        for folder, subfolders, names in os.walk(root):
            real_folder = os.path.realpath(folder)
            if real_folder in visited:
                subfolders.clear()
                continue
            visited.add(real_folder)
            for name in names:
                members[Path(folder, name)] = None
            # A hidden name is no data, so another name of the same folder comes before it.
            subfolders.sort(key=lambda name: (name.startswith((".", "_")), name))
            subpaths = [Path(folder, name) for name in subfolders]
            roots += [subpath for subpath in subpaths if subpath.is_symlink()]
    return list(members)


def _list_local(address: str, key: str) -> list[File]:
    members = _find_members(address)
    if not members and not Path(address).exists():
        raise UserError(
            f"{Path(address)}: no such file or folder", key=key, cure="set it to where the text is"
        )
    files = []
    for path in members:
        if path.is_file():
            files.append(_stamp_local(path, key))
        elif path.is_symlink():
            files.append(File(str(path), size=0, stamp=BROKEN_LINK))
    return files


def _stamp_local(path: Path, key: str) -> File:
    def not_read(error: Exception) -> UserError:
        return UserError(f"{path}: cannot read it: {first_line(error)}", key=key)

    with as_user_error(not_read):
        status = path.stat()
        size = status.st_size
        stamp = checksum(path) if size <= _WHOLE else f"{size} {status.st_mtime_ns}"
    return File(str(path), size=size, stamp=stamp)


# A client is not safe to use in a fork: the process is the key.
@lru_cache(maxsize=1)
def _s3(process: int) -> Any:
    """Return the client of `process`, with AWS_ENDPOINT_URL, region and credentials as usual."""
    import boto3
    from botocore.config import Config

    # A read that hangs fails soon, and is tried again at the first missing byte.
    config = Config(
        connect_timeout=10,
        read_timeout=20,
        retries={"mode": "standard", "max_attempts": 4},
    )
    return boto3.client("s3", config=config)


def _list_s3(address: str) -> list[File]:
    bucket, _, wanted = address.removeprefix("s3://").partition("/")
    prefix = _PATTERN.split(wanted)[0]
    is_pattern = prefix != wanted
    folder = prefix
    if prefix and not prefix.endswith("/"):
        folder = f"{prefix}/"

    # S3 lists all keys with the prefix: those of "a" are of "ab", too.
    paginator = _s3(os.getpid()).get_paginator("list_objects_v2")
    files = []
    for page in paginator.paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", ()):
            key = item["Key"]
            size = item["Size"]
            if is_pattern:
                fits = fnmatch.fnmatchcase(key, wanted)
            else:
                fits = key == prefix or key.startswith(folder)
            if fits and size:
                files.append(File(f"s3://{bucket}/{key}", size=size, stamp=item["ETag"]))
    return files


def _fsspec(address: str) -> Any:
    try:
        system, _ = fsspec.core.url_to_fs(address)
        return system
    except (ImportError, ValueError) as error:
        raise UserError(
            str(error), key=address, cure="install what reads this kind of address"
        ) from None


def _list_fsspec(address: str) -> list[File]:
    system = _fsspec(address)
    is_pattern = _PATTERN.search(address) is not None
    find = system.glob if is_pattern else system.find
    files = []
    for name, details in find(address, detail=True).items():
        stamp = None  # systems have one of these
        for field in ("ETag", "etag", "mtime", "created"):
            stamp = stamp or details.get(field)
        full_address = system.unstrip_protocol(name)
        files.append(File(full_address, size=details["size"], stamp=str(stamp)))
    return files


def open_ranges(file: File) -> BinaryIO:
    """Return a file for random access."""
    return _Ranges(None, file.address, block_size=BLOCK, size=file.size)


class _Ranges(AbstractBufferedFile):
    """File interface to exact ranges of an address."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return b"".join(read(self.path, begin=start, end=end))


def as_file(blocks: Iterator[bytes]) -> io.BufferedReader:
    """Return `blocks` as a file. A line of any length is read in linear time."""
    return io.BufferedReader(_Blocks(blocks), BLOCK)


class _Blocks(io.RawIOBase):
    """File interface to an iterator of blocks."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self.blocks = blocks
        self.unread = memoryview(b"")  # of the last block

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self.unread:
            self.unread = memoryview(next(self.blocks, b""))
        count = min(len(buffer), len(self.unread))
        buffer[:count] = self.unread[:count]
        self.unread = self.unread[count:]
        return count
