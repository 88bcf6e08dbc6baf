"""Files by their addresses: on this machine, or on s3://, gs:// or az://, packed or not.

Listing and remote files are pyarrow's, the same for a folder and a bucket. What was traded: a
pattern fits files only, not the folders above them, and an error of a server is told apart from a
mistake by its words.
"""

import bz2
import contextlib
import gzip
import io
import logging
import lzma
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path, PurePath
from typing import Any, TextIO

from backports import zstd

from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.sums import checksum

# Frames of `zstd --long=31`; the decoder's own limit is 27.
_ZSTD_OPTIONS = {int(zstd.DecompressionParameter.window_log_max): 31}
UNPACK: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda file: zstd.open(file, options=_ZSTD_OPTIONS),
}
BUFFER = 1 << 20  # bytes per read
# A file may unpack to SMALL bytes, and SWELLING for each of its own.
SMALL, SWELLING = 1 << 25, 1000
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_HIDDEN = re.compile(r"(^|/)[._~]")  # of systems, editors, Hadoop, Excel
_PATTERN = re.compile(r"[*?\[]")
# Names that no data set of the hub has.
_PATH = re.compile(r"^[./~]|^$|://|[*?\[]|/$")
# Errors of servers that another try does not mend.
_LASTING = re.compile(r"not exist|ACCESS_DENIED|NO_SUCH|NOT_FOUND|INVALID|HTTP.* 4\d\d")
_CURE = "name a file, a folder, or a pattern with *"
_DEEPEST = 36  # folders in one another; at 40 links of a circle a system gives up
log = logging.getLogger(__name__)


def is_remote(address: str) -> bool:
    """Return whether an address has a protocol, such as s3://."""
    return "://" in address


def ending_of(address: str) -> str:
    """Return the ending of a file's name in small letters, without that of a compression."""
    path = PurePath(address.lower())
    return PurePath(path.stem).suffix if path.suffix in UNPACK else path.suffix


def is_path(name: str, endings: Collection[str] = ()) -> bool:
    """Return whether `name` is an address of files, existing or not, and not a name of the hub."""
    has_ending = ending_of(name) in endings or PurePath(name.lower()).suffix in UNPACK
    return has_ending or _PATH.search(name) is not None or os.path.exists(name)


def check_there(name: str, key: str, endings: Collection[str]) -> None:
    """Raise UserError if `name` can only be one path on this machine, and nothing is there, or
    what waits for a writer, or has no end.
    """
    exists = os.path.exists(name)
    is_anywhere = is_remote(name) or _PATTERN.search(name) or exists
    if is_path(name, endings) and not is_anywhere:
        raise UserError(f"{name}: no such file or folder", key=key, cure=_CURE)
    if exists and not (os.path.isfile(name) or os.path.isdir(name)):
        raise UserError(f"{name}: a device, a pipe or a socket", key=key, cure="save it as a file")


def find_files(address: str, key: str, endings: Collection[str]) -> list[str]:
    """Return the files of an address, in order.

    Args:
        address: a file, which is taken as it is, a folder, or a pattern with `*`. In folders,
            hidden names do not count.
        key: the config key that names it, for messages.
        endings: of the files of a folder or pattern that count.

    Raises:
        UserError: there is none, or one is there twice, packed and not.
        Unavailable: a server fails.
    """
    check_there(address, key, endings)
    with as_user_error(unreadable(address)):
        paths = _list(address.rstrip("/") or address)
    if paths == [address]:
        return paths
    files = sorted(path for path in paths if ending_of(path) in endings)
    if not files:
        problem = f"no file of {', '.join(endings)} in it" if paths else "no such file or folder"
        raise UserError(f"{address}: {problem}", key=key, cure=_CURE)
    if len(files) < len(paths):
        others = len(paths) - len(files)
        log.info("%s: left out are files of other endings: %d", address, others)
    # Else its rows would count twice.
    for path in files:
        unpacked, suffix = os.path.splitext(path)
        if suffix in UNPACK and unpacked in files:
            raise UserError(
                f"there is {unpacked}, too",
                key=path,
                cure="delete one of the two",
            )
    return files


def _list(address: str) -> list[str]:
    """Return `address` itself if it is a file, else the files in it or of its pattern."""
    from fsspec.utils import glob_translate
    from pyarrow.fs import FileSelector, FileType

    system, path = open_system(address)
    kind = system.get_file_info(path).type
    if kind is FileType.File:
        return [address]
    folder = path
    pattern = re.compile("")
    if kind is FileType.NotFound and _PATTERN.search(path):
        folder = _PATTERN.split(path)[0].rpartition("/")[0] or "."
        pattern = re.compile(glob_translate(path.removeprefix("./")))

    # A bucket's listing has no protocol, which the caller's addresses have.
    start = address.removesuffix(path)
    paths = []
    for info in system.get_file_info(FileSelector(folder, recursive=True, allow_not_found=True)):
        if info.path.count("/") > _DEEPEST:
            raise ValueError("links to folders in it lead in a circle")
        name = info.path.removeprefix("./")
        is_hidden = _HIDDEN.search(info.path.removeprefix(folder))
        if info.is_file and pattern.match(name) and not is_hidden:
            paths.append(start + name)
    return paths


def open_system(address: str) -> tuple[Any, str]:
    """Return the file system (of pyarrow) of an address, and the path in it. Raises whatever
    pyarrow does.
    """
    from pyarrow import fs

    if not is_remote(address):
        return fs.LocalFileSystem(), address
    protocol, _, path = address.partition("://")
    bucket = path.partition("/")[0]
    if protocol == "az":
        return _open_azure(bucket), path
    system, _ = fs.FileSystem.from_uri(f"{protocol}://{bucket}")  # in its region, AWS_ENDPOINT_URL
    return system, path


def _open_azure(container: str) -> Any:
    """Return the file system of an account of Azure. Raises UserError without a login to it."""
    from pyarrow import ArrowException, fs

    try:
        system = fs.AzureFileSystem(account_name=os.environ.get("AZURE_STORAGE_ACCOUNT", ""))
        # A login that fails is raised for a file; for a container it would abort this process.
        system.get_file_info(f"{container}/file")
    except ArrowException as error:
        raise UserError(
            f"no login to Azure ({first_line(error)})",
            key=f"az://{container}",
            cure="set AZURE_STORAGE_ACCOUNT, and run `az login`",
        ) from None
    return system


def stamp(address: str) -> str:
    """Return a text that changes with the content of a file; of a remote one, with size and time.

    Raises:
        UserError: it is not there.
        Unavailable: a server fails.
    """
    with as_user_error(unreadable(address)):
        if not is_remote(address):
            return checksum(Path(address))
        system, path = open_system(address)
        info = system.get_file_info(path)
        return f"{info.path} {info.size} {info.mtime_ns}"


def unreadable(address: str) -> Callable[[Exception], UserError]:
    """Return a function that makes one line of whatever a system, a server or a parser raises."""

    def convert(error: Exception) -> UserError:
        if isinstance(error, UnicodeError):
            problem = first_line(error)
            names = _not_utf8(Path(address))
            if len(names) > 1:
                problem += f" (so it is with {len(names)} files there: {', '.join(names):.100})"
            return UserError(
                problem,
                key=address,
                cure="save it as UTF-8: `iconv -f LATIN1 -t UTF-8 OLD > NEW`",
            )
        is_of_server = is_remote(address) and isinstance(error, OSError)
        is_lasting = not is_of_server or _LASTING.search(str(error))
        kind = UserError if is_lasting else Unavailable
        return kind(first_line(error), key=address)

    return convert


def _not_utf8(path: Path) -> list[str]:
    """Return the names of the files beside one, and of its ending, that do not begin as text."""
    names = []
    for file in sorted(path.parent.glob(f"*{path.suffix}"))[:1_000]:
        try:
            if file.is_file():
                with open_bytes(str(file)) as content:
                    as_text(content).read(BUFFER)
        except UnicodeError:
            names.append(file.name)
        except Exception:
            continue  # another user's, or damaged
    return names


def check_unpacked(size: int, packed: int) -> None:
    """Raise ValueError if `packed` bytes are of far more than any text packs to."""
    if size > SMALL + SWELLING * packed:
        raise ValueError(f"it unpacks to more than {SWELLING:,} times its size")


class _Bounded(io.RawIOBase):
    """What is unpacked of a file, as far as `check_unpacked` allows."""

    def __init__(self, file: Any, packed: Any) -> None:
        self.file = file
        self.packed = packed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self.file.read(len(buffer))
        buffer[: len(content)] = content
        check_unpacked(self.file.tell(), self.packed.tell())
        return len(content)


@contextlib.contextmanager
def open_bytes(address: str) -> Iterator[Any]:
    """Open a file, unpacked by its ending. Raises whatever the system or the server does."""
    suffix = PurePath(address.lower()).suffix
    unpack = UNPACK.get(suffix, contextlib.nullcontext)
    if is_remote(address):
        system, path = open_system(address)
        raw = system.open_input_file(path)
    else:
        raw = io.FileIO(address)
    with raw, unpack(io.BufferedReader(raw, BUFFER)) as file:
        yield io.BufferedReader(_Bounded(file, raw), BUFFER) if suffix in UNPACK else file


@contextlib.contextmanager
def open_text(address: str) -> Iterator[TextIO]:
    """Open a text in UTF-8 or, with a byte order mark, UTF-16, unpacked by its ending. Line ends
    stay as they are.

    Raises:
        UserError: the file is not there, damaged, or has another encoding; or whatever else is
            raised in the block.
        Unavailable: a server fails.
    """
    with as_user_error(unreadable(address)), open_bytes(address) as file:
        yield as_text(file)


def as_text(file: Any) -> TextIO:
    """Return an open file as text, see `open_text`."""
    encoding = _MARKS.get(file.peek(2)[:2], "utf-8-sig")
    return io.TextIOWrapper(file, encoding=encoding, newline="")
