"""Files and folders of text as dumps, editors and the hub leave them."""

import gzip
import json
from csv import QUOTE_ALL
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from detalbert.reading.folders import find_files
from detalbert.reading.notes import Notes
from tests.corpus import documents
from tests.reading import files
from tests.reading.files import encode, json_lines, long_frame, read_documents, table

TEXTS = ["The Zanto was loaded.", "Köln, 東京 and 😀.", 'A "note", then: [12].']
ROWS = [{"text": text} for text in TEXTS]
LINES = json_lines(ROWS)
PLAIN = "\n".join(TEXTS)
EMPTY_FRAME = b"\x50\x2a\x4d\x18\x04\0\0\0\1\2\3\4"  # with which pzstd begins a file
MEMBERS = [line.encode() for line in LINES.splitlines(keepends=True)]
ODD = ["NUL\0in it", "one\u2028line", "and\x85this", "with\x0bmore"]


def parquet_of(kind: Any, values: list[Any] | None = None) -> bytes:
    """A Parquet file with a column `text` of a type."""
    content = pyarrow.BufferOutputStream()
    column = pyarrow.array(TEXTS if values is None else values).cast(kind)
    pyarrow.parquet.write_table(pyarrow.table({"text": column}), content)
    return content.getvalue().to_pybytes()


def squad(texts: list[Any]) -> str:
    paragraphs = [{"context": text, "qas": []} for text in texts]
    return json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]})


# The name of a file, its content, and its documents if they are not TEXTS.
FILES: dict[str, tuple[str, str | bytes, list[str]]] = {
    "wikiextractor": ("wiki_00", LINES, TEXTS),
    "C4": ("c4.json", LINES, TEXTS),
    "C4, packed": ("c4.json.gz", gzip.compress(LINES.encode()), TEXTS),
    "ndjson": ("a.ndjson", LINES, TEXTS),
    "JSON lines in a text": ("a.txt", LINES, TEXTS),
    "a list of rows in a text": ("a.txt", json.dumps(ROWS), TEXTS),
    "SQuAD": ("a.json", squad(TEXTS), TEXTS),
    "a mark in JSON lines": ("a.jsonl", encode(LINES, "utf-8-sig"), TEXTS),
    "a mark in a text": ("a.txt", encode(PLAIN, "utf-8-sig"), TEXTS),
    "PowerShell's JSON lines": ("a.jsonl", encode(LINES, "utf-16-le"), TEXTS),
    "PowerShell's text": ("a.txt", encode(PLAIN, "utf-16-le"), TEXTS),
    "a table of an old Mac": ("a.csv", table(ROWS, line_end="\r", quoting=QUOTE_ALL), TEXTS),
    "capitals": ("A.TXT", PLAIN, TEXTS),
    "Windows": ("a.txt", PLAIN.replace("\n", "\r\n"), TEXTS),
    "binary": ("a.parquet", parquet_of(pyarrow.binary()), TEXTS),
    "large": ("a.parquet", parquet_of(pyarrow.large_string()), TEXTS),
    "a dictionary": (
        "a.parquet",
        parquet_of(pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
        TEXTS,
    ),
    "views": ("a.parquet", parquet_of(pyarrow.string_view()), TEXTS),
    "no values": ("a.parquet", parquet_of(pyarrow.null(), [None, None]), []),
    "no rows": ("a.parquet", parquet_of(pyarrow.string(), []), []),
    "an Arrow stream": ("data.arrow", files.arrow(ROWS, is_stream=True), TEXTS),
    "Reddit": ("RC_2011-01.zst", long_frame(LINES.encode()), TEXTS),
    "pzstd": ("a.jsonl.zst", EMPTY_FRAME + files.pack(MEMBERS, "zstd"), TEXTS),
    "gzip members": ("a.jsonl.gz", files.pack(MEMBERS, "gzip"), TEXTS),
    "Wikimedia's streams": ("a.jsonl.bz2", files.pack([b"", *MEMBERS], "bz2"), TEXTS),
    "xz": ("a.jsonl.xz", files.pack(MEMBERS, "xz"), TEXTS),
    "odd line ends in rows": ("a.jsonl", json_lines([{"text": text} for text in ODD]), ODD),
    "odd line ends": ("a.txt", "\n".join(ODD), ODD),
    "rows of several lines, named as lines": (
        "a.jsonl",
        "\n".join(json.dumps(row, indent=2) for row in ROWS),
        TEXTS,
    ),
    "a line with a list named data": ("a.jsonl", '{"text": "A", "data": [1, 2]}\n', ["A"]),
    "an old Mac's lines": ("a.txt", PLAIN.replace("\n", "\r"), TEXTS),
    "an old Mac's lines, packed": (
        "a.txt.gz",
        gzip.compress(encode(PLAIN.replace("\n", "\r"), "utf-16-le")),
        TEXTS,
    ),
    "texts with marks, put together": (
        "a.txt",
        b"".join(encode(f"{text}\n", "utf-8-sig") for text in TEXTS),
        TEXTS,
    ),
    "JSON lines with marks, put together": (
        "a.jsonl",
        b"".join(encode(f"{line.decode()}", "utf-8-sig") for line in MEMBERS),
        TEXTS,
    ),
    "a list in a text is no JSON": ("a.txt", "[12] notes\n{a} b\n", ["[12] notes", "{a} b"]),
}


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("name", FILES)
def test_a_file_as_it_is_written(name: str, tmp_path: Path) -> None:
    file, content, expected = FILES[name]
    path = write(tmp_path / "folder" / file, content)
    assert read_documents(path) == expected
    assert read_documents(path, part_bytes=20) == expected


GAPS: list[Any] = [TEXTS[0], None, TEXTS[1], "", TEXTS[2]]
GAPPED = [{"id": number, "text": text} for number, text in enumerate(GAPS)]
WITH_GAPS: dict[str, tuple[str, str | bytes]] = {
    "JSON lines": ("a.jsonl", json_lines(GAPPED)),
    "SQuAD": ("a.json", squad(GAPS)),
    "a table": ("a.csv", table(GAPPED)),
    "Parquet": ("a.parquet", files.parquet(GAPPED)),
}


@pytest.mark.parametrize("name", WITH_GAPS)
def test_a_row_without_text_is_passed_over_and_counted(name: str, tmp_path: Path) -> None:
    file, content = WITH_GAPS[name]
    notes = Notes()
    assert read_documents(write(tmp_path / "folder" / file, content), notes=notes) == TEXTS
    assert dict(notes.counts) == {"rows have no text and are left out": 2}


def test_a_line_of_windows_ends_without_its_carriage_return(tmp_path: Path) -> None:
    """Also where white space is kept."""
    path = write(tmp_path / "a.txt", "one\r\n two \r\n")
    texts = documents.read(path, part_bytes=1 << 20, exact=True, article="line")
    assert texts == ["one", " two "]


def test_an_old_mac_text_that_is_one_document_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\rtwo\r")
    assert documents.read(path, exact=True) == ["one\rtwo\r"]
    assert documents.read(path, exact=True, article="line") == ["one", "two"]


def test_a_dump_of_one_long_line(tmp_path: Path) -> None:
    text = "word " * 600_000
    path = write(tmp_path / "folder" / "a.txt", text)
    assert read_documents(path) == [text.strip()]


def test_markup_that_is_named_as_text_is_text(tmp_path: Path) -> None:
    path = write(tmp_path / "folder" / "a.txt", "<html>\n")
    assert read_documents(path) == ["<html>"]
    assert read_documents(write(tmp_path / "folder" / "a", "<?xml?>"), form="text") == ["<?xml?>"]


# Files of a folder, those that are passed over, and how the warning begins.
FOLDERS: dict[str, tuple[dict[str, str | bytes], str]] = {
    "Jupyter": (
        {"a.jsonl": LINES, ".ipynb_checkpoints/a-checkpoint.jsonl": LINES},
        "1 files are passed over: .ipynb_checkpoints/a-checkpoint.jsonl",
    ),
    "macOS": (
        {"a.txt": PLAIN, "__MACOSX/._a.txt": b"\0\5\x16\7", "._a.txt": b"\0\5", ".DS_Store": b"\0"},
        "3 files are passed over: .DS_Store, ._a.txt, __MACOSX/._a.txt",
    ),
    "the hub": (
        {
            "README.md": "---\nlicense: mit\n---\n# A card\n",
            "data/train-00000-of-00001.parquet": files.parquet(ROWS),
            "data/test-00000-of-00001.parquet": files.parquet(ROWS),
            ".gitattributes": "*.parquet filter=lfs\n",
        },
        "3 files are passed over: .gitattributes, README.md, data/test-00000-of-00001.parquet",
    ),
    "wikiextractor": (
        {"AA/wiki_00": LINES, "AA/LICENSE": "Some words of law.\n"},
        "1 files are passed over: AA/LICENSE",
    ),
    "save_to_disk, with results of map": (
        {
            "data-00000-of-00001.arrow": files.arrow(ROWS, is_stream=True),
            "cache-0123456789abcdef.arrow": files.arrow(ROWS, is_stream=True),
            "cache-0123456789abcdef_00000_of_00002.arrow": files.arrow(ROWS, is_stream=True),
            "state.json": '{"_data_files": []}',
        },
        "3 files are passed over: cache-0123456789abcdef.arrow, "
        "cache-0123456789abcdef_00000_of_00002.arrow, state.json",
    ),
    "Spark and Dask": (
        {
            "part-00000-0a.snappy.parquet": files.parquet(ROWS),
            "_SUCCESS": "",
            ".part-00000-0a.snappy.parquet.crc": b"crc\0",
            "_metadata": files.parquet(ROWS),
            "_delta_log/00000000000000000000.json": '{"commitInfo": {}}\n',
        },
        "4 files are passed over: .part-00000-0a.snappy.parquet.crc, _SUCCESS, "
        "_delta_log/00000000000000000000.json and 1 more",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_as_it_lies(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    contents, warning = FOLDERS[name]
    for file, content in contents.items():
        write(tmp_path / "folder" / file, content)
    assert read_documents(tmp_path / "folder") == TEXTS
    messages = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert messages == ([f"data.text: {warning}"] if warning else [])


@pytest.mark.parametrize("address", ["{}", "./{}", "././{}/", ".", "memory://{}", "memory:///{}/"])
def test_a_folder_by_any_of_its_addresses(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its card, its test split and its hidden files are passed over, though it is in a hidden
    folder itself.
    """
    contents = {
        "README.md": "---\nlicense: mit\n---\n# A card\n",
        "train.jsonl": LINES,
        "test.jsonl": LINES,
        ".hidden/train.jsonl": LINES,
    }
    monkeypatch.chdir(tmp_path)
    address = address.format(".cache/data")
    memory = fsspec.filesystem("memory")
    for file, content in contents.items():
        folder = "" if address == "." else ".cache/data/"
        write(Path(folder + file), content)
        memory.pipe(f"/{folder}{file}", content.encode())
    files = find_files(address, "data.text")
    assert [Path(file.address).name for file in files] == ["train.jsonl"]
