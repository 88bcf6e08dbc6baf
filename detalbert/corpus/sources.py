"""Sources of text, cut into the ranges that shards are made of.

| address | documents |
| --- | --- |
| `generated` | the passages of the embedded world, one document each |
| `botocore` | AWS's API reference, installed with Determined: see `api_text` |
| a file, a folder, a pattern with `*`, `s3://bucket/prefix`, what fsspec knows | its files' |
| `NAME`, `NAME@REVISION`, `NAME:CONFIG` | the column of a hub data set's train split |

A file of rows has a document per row, under `text_key`; one of SQuAD's shape has its contexts;
plain text has them by `data.article`: one line or many, the file, or what blank lines enclose.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import botocore
import pyarrow.parquet

from detalbert.atomic import write_json
from detalbert.corpus import api_text
from detalbert.errors import Cure, UserError, as_user_error, first_line
from detalbert.hub import looks_like_path
from detalbert.integrity import read_sealed, seal
from detalbert.processes import count_cores
from detalbert.reading import storage
from detalbert.reading.folders import find_files, repeated_files, warn_of_files
from detalbert.reading.forms import (
    END_MARK,
    ENDINGS,
    PACKED,
    Content,
    read_content,
    recognise,
)
from detalbert.reading.hub_rows import load_hub_rows
from detalbert.reading.packing import UTF8
from detalbert.reading.parquet import check_text_column, open_table
from detalbert.reading.rows import open_content
from detalbert.reading.snapshot import held_out_names
from detalbert.settings import forms
from detalbert.settings.text import SourceConfig
from detalbert.squad import world
from detalbert.waiting import waiting

T = TypeVar("T")
# Forms that cannot be cut.
_UNCUT = ("generated", "botocore", "file", forms.JSON, forms.ARROW, *forms.SHEETS)
# The form that a name promises; other names promise text.
_NAMED_FORMS = {
    ".jsonl": forms.JSON_LINES,
    ".csv": forms.TABLE,
    ".parquet": forms.PARQUET,
    ".json": forms.JSON,
}
# How files of a form or an encoding are read, by number: raise it if some give other documents.
_READINGS = {forms.TABLE: 2, "utf-8-sig": 2, "utf-16": 2, "utf-32": 2}
_REQUESTS = 16  # files of which the first bytes are read at the same time
_ROW_BYTES = 4_000  # of a hub document, on average, when its rows are shared out


class Part(NamedTuple):
    """A range of a source: documents that begin in bytes begin..end (exclusive) of a file's
    content, or rows begin..end. Some forms can only be read whole.
    """

    # generated, botocore, hub; of a file one of `forms`, of plain text its `data.article`
    form: str
    address: str  # of `generated`: the split
    end: int
    size: int  # of the whole file, in bytes or rows; if packed, of its content
    begin: int = 0
    content: Content | None = None  # of a file
    exact: bool = False  # white space at the ends of documents is kept
    text_key: str = "text"
    config_key: str = "data.text"  # of its source, for messages
    unit: int = 1  # bytes per unit of `begin` and `end`, about

    @property
    def text_bytes(self) -> int:
        """Approximate bytes of text."""
        return (self.end - self.begin) * self.unit

    @property
    def is_packed(self) -> bool:
        """Whether it is a part of a packed file, which is read from its start."""
        return self.content is not None and self.content.is_packed


class Text(NamedTuple):
    """The text of one source: its files in order, and a fingerprint of the content."""

    parts: list[Part]
    fingerprint: str
    articles: str = ""  # what is one document of its plain text, if it has some


def open_text(
    source: SourceConfig,
    key: str,
    split: str,
    exact: bool = False,
    article: str = "line",
    form: str | None = None,
    sheet: str | None = None,
) -> Text:
    """Return the text of `source`, none of it in memory.

    Sizes of packed files' content are not known yet: see `unpack_sizes`.

    Args:
        key: the config key of the source, for messages.
        split: train or validation, of the generated world and of a hub data set's folder.
        exact: keep white space at the ends of documents, as for `data.documents`.
        article: of plain text, as `data.article`.
        form: of every file, as `data.form`; default: found.
        sheet: of spreadsheets, as `data.sheet`; default: the first.

    Raises:
        UserError: the address has no text.
    """
    address = source.source
    if address == "generated":
        return _generated_text(split, exact)
    if address == "botocore":
        return _botocore_text(exact)
    if not (storage.is_remote(address) or looks_like_path(address, (*ENDINGS, *PACKED))):
        return _hub_text(source, key=key, exact=exact)

    # Files: how plain text is cut matters only if there is some.
    files = find_files(address, key=key, split=split)
    if split == "train":
        held_out = held_out_names([file.address for file in files])
        warn_of_files(f"{key}: %s files are trained on that may be held-out data: %s", held_out)
    repeated = repeated_files(files)
    warn_of_files(f"{key}: %s files seem to hold what others hold: %s", repeated)
    contents = _recognise_all(files, form, sheet)
    marked = [content.file.address for content in contents if content.has_end_marks]
    warn_of_files(
        f"{key}: %s files have {END_MARK}, which is trained as text; write their documents as JSON "
        "lines: %s",
        marked,
    )
    parts = []
    for content in contents:
        part = _file_part(content, exact, article=article, text_key=source.text_key)
        parts.append(part._replace(config_key=key))
    is_plain = any(part.form == article for part in parts)
    articles = article if is_plain else ""
    stamp = _stamp(contents, article=articles, exact=exact)
    return Text(parts, fingerprint=stamp + _own_key(source), articles=articles)


def _own_key(source: SourceConfig) -> str:
    """Return what the key of a row's text adds to a fingerprint."""
    return "" if source.text_key == "text" else source.text_key


def _generated_text(split: str, exact: bool) -> Text:
    stamp = hashlib.sha256("".join(generated(split)).encode()).hexdigest()
    part = Part("generated", address=split, end=1, size=1, exact=exact)
    return Text([part], fingerprint=stamp)


def _botocore_text(exact: bool) -> Text:
    parts = []
    for path in api_text.find_services():
        size = path.stat().st_size
        parts.append(Part("botocore", address=str(path), end=size, size=size, exact=exact))
    return Text(parts, fingerprint=f"botocore {botocore.__version__}")


def _hub_text(source: SourceConfig, key: str, exact: bool) -> Text:
    # Rows, and not bytes: the data set's own fingerprint says what is in them.
    rows = hub_rows(source.source, key=key, text_key=source.text_key)
    part = Part(
        "hub",
        address=source.source,
        end=len(rows),
        size=len(rows),
        exact=exact,
        text_key=source.text_key,
        unit=_ROW_BYTES,
    )
    return Text([part], fingerprint=rows._fingerprint + _own_key(source))


def _recognise_all(files: list[storage.File], form: str | None, sheet: str | None) -> list[Content]:
    """Return what the files hold; the first bytes of several are read at the same time."""
    with (
        ThreadPoolExecutor(_REQUESTS) as threads,
        waiting(
            "looking at the files of the text",
            total=len(files),
            unit="files",
            quiet=True,
        ) as wait,
    ):
        return list(wait.each(threads.map(partial(recognise, form=form, sheet=sheet), files)))


def _stamp(contents: list[Content], article: str, exact: bool) -> str:
    """Return a SHA-256 that changes with the text."""
    values: list[object] = []
    for content in contents:
        file = content.file
        values.append((Path(file.address).name, file.size, file.stamp))
    if article and article != ("file" if exact else "line"):
        values.append(article)

    # Files that are read otherwise than their names promise.
    for content in contents:
        path = Path(content.file.address)
        path = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
        named_form = _NAMED_FORMS.get(path.suffix, forms.TEXT)
        is_plain_utf8 = content.encoding == UTF8 or content.form != forms.TEXT
        if content.form != named_form or not is_plain_utf8:
            values.append((path.name, content.form, content.encoding))
        if content.sheet:
            values.append(content.sheet)
        for kind in (content.form, content.encoding):
            if kind in _READINGS:
                values.append(_READINGS[kind])
        if content.has_carriage_returns and article != "file":
            values.append("carriage returns")
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def _file_part(content: Content, exact: bool, article: str, text_key: str) -> Part:
    """Return a file as one part; its size is not known yet if it is packed."""
    file = content.file
    size = 0 if content.is_packed else file.size
    part = Part(
        article if content.form == forms.TEXT else content.form,
        address=file.address,
        end=size,
        size=size,
        content=content,
        exact=exact,
        text_key=text_key,
    )
    if content.form != forms.PARQUET:
        return part
    with open_parquet(part) as table:
        rows = table.metadata.num_rows
    # Parquet is cut by rows.
    unit = max(1, file.size // max(1, rows))
    return part._replace(end=rows, size=rows, unit=unit)


def open_parquet(part: Part) -> pyarrow.parquet.ParquetFile:
    """Return the table of a file. Raises UserError if it is none, or has no column of text under
    the part's key.
    """
    assert part.content is not None

    def unreadable(error: Exception) -> UserError:
        return UserError(
            f"not a whole Parquet file ({first_line(error)})", key=part.address, cure="fix it"
        )

    with as_user_error(unreadable):
        table = open_table(open_content(part.content), where=part.address)
    check_text_column(
        table.schema_arrow,
        name=find_name(table.schema_arrow.names, part.text_key) or part.text_key,
        where=part.address,
        cure=Cure(f"name the column of the text in {name_text_key(part)}", by_flag="rename it"),
    )
    return table


def name_text_key(part: Part) -> str:
    """Return where the config names the key of a part's text."""
    return f"text_key, as in {part.config_key}: {{source: ..., text_key: body}}"


def find_name(names: Collection[str], key: str) -> str | None:
    """Return the one of some names that is `key`, or the only one that differs from it in capitals
    alone; None without one.
    """
    if key in names:
        return key
    alike = [name for name in names if name.lower() == key.lower()]
    return alike[0] if len(alike) == 1 else None


def unpack_sizes(text: Text, folder: Path) -> list[Part]:
    """Return the files of `text` with uncompressed sizes, kept in a file in `folder`: measuring
    reads each compressed file once.
    """
    if not any(map(_is_measured, text.parts)):
        return text.parts
    path = folder / f"sizes-{text.fingerprint[:24]}.json"
    # Measured once, by all that read this text.
    saved = read_sealed(path)
    if saved is None or saved.get("text") != text.fingerprint:
        sizes = _measure_all(text.parts)
        write_json(path, seal({"text": text.fingerprint, "sizes": sizes}))
    else:
        sizes = saved["sizes"]
    pairs = zip(text.parts, sizes, strict=True)
    return [part._replace(end=size, size=size) for part, size in pairs]


def _measure_all(parts: list[Part]) -> list[int]:
    """Return the bytes of the parts' content; several files are read at the same time."""
    with (
        ThreadPoolExecutor(count_cores()) as threads,  # decompression leaves the lock of Python
        waiting("measuring compressed text", total=len(parts), unit="files") as wait,
    ):
        return list(wait.each(threads.map(_measure, parts)))


def _is_measured(part: Part) -> bool:
    """Return whether a file must be read for its size."""
    return part.is_packed and part.form != forms.PARQUET


def _measure(part: Part) -> int:
    if not _is_measured(part):
        return part.size
    assert part.content is not None
    return sum(map(len, read_content(part.content)))


def cut_parts(parts: Iterable[Part], part_bytes: int) -> Iterator[Part]:
    """Yield `parts` cut into ranges of about `part_bytes` bytes, if they can be cut, in order."""
    for part in parts:
        if part.form in _UNCUT:
            yield part
            continue
        # A row of the hub or of Parquet is a unit of some bytes.
        step = max(1, part_bytes // part.unit)
        for begin in range(part.begin, part.end, step):
            yield part._replace(begin=begin, end=min(part.end, begin + step))


def size_of(parts: Iterable[Part]) -> int:
    """Return the approximate bytes of text."""
    return sum(part.text_bytes for part in parts)


def group(items: Iterable[T], size: Callable[[T], int], least: int) -> Iterator[list[T]]:
    """Yield neighbours in lists of at least `least` in all, by the `size` of each; the last list
    may have less.
    """
    members = list[T]()
    total = 0
    for item in items:
        members.append(item)
        total += size(item)
        if total >= least:
            yield members
            members = []
            total = 0
    if members:
        yield members


def generated(split: str) -> list[str]:
    """Return the passages of the embedded world."""
    return contexts(world.generate(split, seed=1))


def contexts(document: dict[str, Any]) -> list[str]:
    """Return the contexts of a document of SQuAD's shape."""
    texts = []
    for article in document["data"]:
        texts += [paragraph["context"] for paragraph in article["paragraphs"]]
    return texts


def hub_rows(address: str, key: str, text_key: str = "text") -> Any:
    """Load the rows of a hub name, memory-mapped. Raises UserError if it lacks the column."""
    rows = load_hub_rows(address, split="train", key=key)
    if find_name(rows.column_names, text_key) is None:
        names = ", ".join(rows.column_names)
        raise UserError(f"{address!r} has no column {text_key!r}, but {names}", key=key)
    return rows
