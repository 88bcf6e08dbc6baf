"""Rows of files, by the endings of their names, and of data sets of the hub.

A file is on this machine, or on s3://, gs:// or az://. Nothing is guessed from its content: what is
not as the ending says is an error of one line, and so is a row that does not fit its header. The
price is that a title above a header, or a file of another program, has to be saved as CSV first.
"""

import bz2
import contextlib
import csv
import glob
import gzip
import io
import itertools
import json
import logging
import lzma
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TextIO

from detalbert.errors import Unavailable, UserError, as_user_error, first_line
from detalbert.sums import checksum

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Row = dict[str, Any]  # values by the names of columns
Rows = Iterator[tuple[str, Any]]  # each with its place in the file
# Frames of `zstd --long=31`; the decoder's own limit is 27.
_ZSTD_OPTIONS = {int(zstd.DecompressionParameter.window_log_max): 31}
UNPACK: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda file: zstd.open(file, options=_ZSTD_OPTIONS),
}
_MARKS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_BUFFER = 1 << 20  # bytes per read
_HIDDEN = re.compile(r"(^|/)[._~]")  # of systems, editors, Hadoop, Excel
_PATTERN = re.compile(r"[*?\[]")
# Errors of servers that another try does not mend.
_LASTING = re.compile(r"not exist|ACCESS_DENIED|NO_SUCH|NOT_FOUND|INVALID|HTTP.* 4\d\d")
_QUOTED = re.compile(r'"[^"]*"')
_LINE_END = re.compile(r"\r\n|\r|\n")
csv.field_size_limit(1 << 30)  # characters of a cell
log = logging.getLogger(__name__)


def is_remote(address: str) -> bool:
    """Return whether an address has a protocol, such as s3://."""
    return "://" in address


def ending_of(address: str) -> str:
    """Return the ending of a file's name in small letters, without that of a compression."""
    path = PurePath(address.lower())
    return PurePath(path.stem).suffix if path.suffix in UNPACK else path.suffix


def find_files(address: str, key: str, endings: Collection[str] = ()) -> list[str]:
    """Return the files of an address, in order.

    Args:
        address: a file, which is taken as it is, a folder, or a pattern with `*`. In folders,
            hidden names do not count.
        key: the config key that names it, for messages.
        endings: of the files of a folder or pattern that count (default: those of rows).

    Raises:
        UserError: there is none, or one is there twice, packed and not.
        Unavailable: a server fails.
    """
    with as_user_error(unreadable(address)):
        paths = _list_remote(address) if is_remote(address) else _list_local(address)
    if paths == [address]:
        return paths
    endings = endings or READERS
    files = sorted(path for path in paths if ending_of(path) in endings)
    if not files:
        problem = f"no file of {', '.join(endings)} in it" if paths else "no such file or folder"
        raise UserError(
            f"{address}: {problem}",
            key=key,
            cure="name a file, a folder, or a pattern with *",
        )
    others = len(paths) - len(files)
    if others:
        log.info("%s: %d files of other endings are left out", address, others)
    for path in files:
        unpacked, suffix = os.path.splitext(path)
        if suffix in UNPACK and unpacked in files:
            raise UserError(
                f"there is {unpacked}, too",
                key=path,
                cure="delete one of the two",
            )
    return files


def _list_local(address: str) -> list[str]:
    roots = [address]
    if not os.path.exists(address):
        roots = glob.glob(address, recursive=True)
    paths: dict[str, None] = {}  # a pattern may fit a folder and a file in it
    visited: set[str] = set()  # links to folders are followed, but not in circles
    for root in roots:
        if not os.path.isdir(root):
            paths[root] = None
        for folder, subfolders, names in os.walk(root, followlinks=True):
            real_folder = os.path.realpath(folder)
            if real_folder in visited or _HIDDEN.search(folder[len(root) :]):
                subfolders.clear()
                continue
            visited.add(real_folder)
            for name in names:
                if not _HIDDEN.match(name):
                    paths[os.path.join(folder, name)] = None
    return list(paths)


def _list_remote(address: str) -> list[str]:
    from fsspec.utils import glob_translate
    from pyarrow.fs import FileSelector

    system, path = open_system(address)
    if system.get_file_info(path).is_file:
        return [address]
    folder = path
    fits = re.compile("")
    if _PATTERN.search(path):
        folder = _PATTERN.split(path)[0].rpartition("/")[0]
        fits = re.compile(glob_translate(path))
    protocol = address.partition("://")[0]
    paths = []
    for info in system.get_file_info(FileSelector(folder, recursive=True)):
        is_hidden = _HIDDEN.search(info.path.removeprefix(folder))
        if info.is_file and fits.match(info.path) and not is_hidden:
            paths.append(f"{protocol}://{info.path}")
    return paths


def open_system(address: str) -> tuple[Any, str]:
    """Return the file system (of pyarrow) of an address, and the path in it.

    Raises:
        UserError: of another protocol than s3, gs and az.
        Exception: whatever pyarrow raises.
    """
    from pyarrow import fs

    if not is_remote(address):
        return fs.LocalFileSystem(), address.rstrip("/") or "/"
    protocol, _, path = address.rstrip("/").partition("://")
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if protocol == "az":
        account = os.environ.get("AZURE_STORAGE_ACCOUNT", "")
        system = fs.AzureFileSystem(account_name=account)
    elif protocol == "s3" and endpoint:
        system = fs.S3FileSystem(endpoint_override=endpoint)
    elif protocol in ("s3", "gs"):
        bucket = path.partition("/")[0]
        system, _ = fs.FileSystem.from_uri(f"{protocol}://{bucket}")  # in the bucket's region
    else:
        raise UserError(
            f"{protocol}:// is not read",
            key=address,
            cure="copy it to this machine",
        )
    return system, path


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
        if isinstance(error, UnicodeDecodeError):
            before = error.object[: error.start][-20:]
            return UserError(
                f"not {error.encoding.upper()} text after {before.decode(errors='replace')!r}",
                key=address,
                cure="save it as UTF-8",
            )
        is_of_server = is_remote(address) and isinstance(error, OSError)
        is_passing = is_of_server and not _LASTING.search(str(error))
        kind = Unavailable if is_passing else UserError
        return kind(first_line(error), key=address)

    return convert


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
    with raw, unpack(io.BufferedReader(raw, _BUFFER)) as file:
        yield file


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
        yield _as_text(file)


def _as_text(file: Any) -> TextIO:
    encoding = _MARKS.get(file.peek(2)[:2], "utf-8-sig")
    return io.TextIOWrapper(file, encoding=encoding, newline="")


def read_rows(address: str, sheet: str | None = None) -> Iterator[tuple[str, Row]]:
    """Yield the rows of a file, each with its place for messages.

    Args:
        address: as `find_files` returns it.
        sheet: of a workbook; default: the first.

    Raises:
        UserError: it has another ending, is not as that says, or has a row that does not fit.
        Unavailable: a server fails.
    """
    ending = ending_of(address)
    if ending not in READERS:
        raise UserError(
            f"it does not end in {', '.join(READERS)}",
            key=address,
            cure="save it as one of these",
        )
    if sheet is not None and ending != ".xlsx":
        raise UserError(
            f"{address} is no workbook",
            key="data.sheet",
            cure="leave it out",
        )
    read = READERS[ending]
    if sheet is not None:
        read = partial(_read_sheet, sheet=sheet)
    with as_user_error(unreadable(address)), open_bytes(address) as file:
        for place, row in read(file):
            if not isinstance(row, dict):
                raise ValueError(f"{place} is {type(row).__name__}, not a mapping of columns")
            yield f"{address}: {place}", row


def _check_names(names: list[str]) -> None:
    for name in names:
        if name and names.count(name) > 1:
            raise ValueError(f"two columns are named {name!r}")


def _name_cells(names: list[str], cells: list[str]) -> Row:
    """Return the cells of a table by their names. Raises ValueError if they do not fit these."""
    if len(cells) != len(names):
        raise ValueError(f"{len(cells)} cells under {len(names)} names")
    if cells == names:
        raise ValueError("the header once more")
    if "" in names:
        for name, cell in zip(names, cells, strict=True):
            if not name and cell and not cell.isdecimal():  # pandas numbers its rows
                raise ValueError(f"{cell!r:.40} is under no name")
    return dict(zip(names, cells, strict=True))


def _read_table(file: Any) -> Rows:
    """Yield the rows of CSV that are not empty. The separator is the most frequent one of the
    header, outside of quotes.
    """
    names: list[str] = []
    separator = ""
    lines = 1  # that may be rows of a record
    has_warned = False
    for number, record in _records(_as_text(file)):
        try:
            if not separator:
                outside_quotes = _QUOTED.sub("", record)
                separator = max(",;\t|", key=outside_quotes.count)
            (cells,) = csv.reader([record], delimiter=separator, strict=True)
            if not names:
                names = [name.strip() for name in cells]
                _check_names(names)
            elif any(cells):
                row = _name_cells(names, cells)
                lines = _check_quotes(record, cells, separator)
                yield f"line {number}", row
        except (csv.Error, ValueError) as error:
            raise ValueError(f"line {number}: {error}") from None
        if lines == 2 and not has_warned:
            has_warned = True
            name = getattr(file, "name", "a table")
            log.warning("%s: line %d: a quote may have made one row of two", name, number)


def _records(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield the records of CSV that are not blank, each with the number of its first line: a line,
    or several until a quote is closed.
    """
    record = ""
    begin = 1
    quotes = 0
    for number, line in enumerate(lines, start=1):
        record += line
        quotes += line.count('"')
        if quotes % 2 == 0:
            if not record.isspace():
                yield begin, record
            record = ""
            begin = number + 1
    if record:
        raise ValueError(f"line {begin}: a quote is not closed")


def _check_quotes(record: str, cells: list[str], separator: str) -> int:
    """Return how many rows a record may be of which a quote that nobody meant made one.

    Raises:
        ValueError: a quote hides separators, or more than two rows.
    """
    if "\0" in record:
        raise ValueError("a NUL character")
    # In 5"a, b",c a separator is missing before the quote, and the comma is taken for one.
    separators = len(cells) - 1
    if any('"' in cell for cell in cells):
        outside_quotes = _QUOTED.sub("", record)
        if outside_quotes.count(separator) != separators:
            raise ValueError("a quote is inside a cell without quotes")

    # Each line has the separators of a row. A space follows the commas of prose.
    lines = _LINE_END.split(record.rstrip("\r\n"))
    counts = {line.count(separator) - line.count(f"{separator} ") for line in lines}
    if len(lines) == 1 or counts != {separators} or not separators:
        return 1
    if len(lines) > 2:
        raise ValueError("a cell in quotes holds lines that look like rows")
    return len(lines)


def _read_json_lines(file: Any) -> Rows:
    return _parse_lines(_as_text(file))


def _parse_lines(lines: Iterable[str]) -> Rows:
    for number, line in enumerate(lines, start=1):
        if not line.isspace():
            try:
                yield f"line {number}", json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number} is not JSON ({error})") from None


def _read_json(file: Any) -> Rows:
    """Yield the rows of a list, of the list `data` of a mapping, or of JSON lines: these begin with
    two lines that are mappings.
    """
    lines = _as_text(file)
    head = list(itertools.islice(lines, 2))
    mappings = [line for line in head if re.match(r"{.*}\s*$", line)]
    if len(mappings) == 2:
        yield from _parse_lines(itertools.chain(head, lines))
        return
    text = "".join(head) + lines.read()
    rows = json.loads(text)
    if isinstance(rows, dict):
        data = rows.get("data")
        rows = data if isinstance(data, list) else [rows]
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _read_parquet(file: Any) -> Rows:
    """Yield the rows of a Parquet file, few at a time: of a text in many rows it holds one."""
    from pyarrow import parquet

    table = parquet.ParquetFile(file, buffer_size=_BUFFER)
    _check_names(table.schema_arrow.names)
    number = 0
    for batch in table.iter_batches(batch_size=16):
        for row in batch.to_pylist():
            number += 1
            yield f"row {number}", row


def _read_sheet(file: Any, sheet: str | None = None) -> Rows:
    """Yield the rows of a sheet that are not empty; its first row names the columns."""
    import openpyxl  # takes a while, and few have sheets

    workbook = openpyxl.load_workbook(file, read_only=True)
    titles = workbook.sheetnames
    title = sheet or titles[0]
    place = f"sheet {title!r} of {', '.join(titles):.200} (data.sheet)"
    if title not in titles:
        raise ValueError(f"no {place}")
    if len(titles) == 1:
        place = f"sheet {title!r}"
    workbook[title].reset_dimensions()  # some programs write wrong ones
    names: list[str] = []
    for number, row in enumerate(workbook[title].iter_rows(), start=1):
        try:
            cells = [_cell_text(cell) for cell in row]
            if not names:
                names = [cell.strip() for cell in cells]
                _check_names(names)
            elif any(cells):
                cells += [""] * (len(names) - len(cells))
                yield f"{place}, row {number}", _name_cells(names, cells)
        except ValueError as error:
            raise ValueError(f"{place}, row {number}: {error}") from None


def _cell_text(cell: Any) -> str:
    """Return a cell of a sheet as Python prints it, a whole number without a point."""
    if cell.data_type in ("f", "e"):
        raise ValueError("a formula, or an error; put a value in its place")
    value = cell.value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return "" if value is None else str(value)


READERS: dict[str, Callable[[Any], Rows]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".xlsx": _read_sheet,
    ".parquet": _read_parquet,
}


def load_hub_rows(name: str, split: str, key: str) -> Any:
    """Return the rows of a split, memory-mapped, of a data set NAME, NAME@REVISION or NAME:CONFIG
    of the hub, or of a folder cloned from it. Config `key` names it.

    Raises:
        UserError: it is not there, or does not load.
        Unavailable: the hub fails.
    """
    import datasets  # takes a second, and few runs need it

    from detalbert import hub

    repo, _, config = name.partition(":")
    with hub.hub_errors(f"{repo!r} is no file, and as a data set it does not load", key=key):
        return hub.load_named(
            datasets.load_dataset,
            repo,
            "dataset",
            split=split,
            name=config or None,
        )
