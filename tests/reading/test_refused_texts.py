"""Files of text that are refused: one line says where the fault is, and what to do."""

import bz2
import gzip
import io
import pickle
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.orc
import pytest

from detalbert.errors import UserError
from tests.reading import files
from tests.reading.files import long_frame, read_documents
from tests.reading.test_text_files import LINES, PLAIN, ROWS, TEXTS, write


def tar(text: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        file = tarfile.TarInfo("a.jsonl")
        file.size = len(text.encode())
        archive.addfile(file, io.BytesIO(text.encode()))
    return content.getvalue()


def orc() -> bytes:
    content = io.BytesIO()
    pyarrow.orc.write_table(pyarrow.table({"text": TEXTS}), content)
    return content.getvalue()


REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "numbers": (
        "a.parquet",
        files.parquet([{"text": 1}]),
        ": column 'text' is int64, and no text; name the column of the text in text_key",
    ),
    "another column": (
        "a.parquet",
        files.parquet([{"content": "a"}]),
        ": no column 'text' (there: content); name the column of the text in text_key",
    ),
    "bytes that are no text": (
        "a.parquet",
        files.parquet([{"text": b"a"}, {"text": b"a\xff"}]),
        ": row 2: not UTF-8 at byte 1 of its 'text'; correct or delete it",
    ),
    "a broken row": (
        "a.jsonl",
        f'{LINES}{{"text": \n',
        f": the line at byte {len(LINES.encode())} is not JSON",
    ),
    "a number": ("a.jsonl", '{"text": 5}\n', "its 'text' is int, and no text; correct it"),
    "another key": ("a.jsonl", '{"body": "a"}\n', "has no 'text' (there: body); correct it, or"),
    "a nested row": (
        "a.jsonl",
        f'{{"a": {"[" * 100_000}\n',
        "is not JSON (maximum recursion depth",
    ),
    "a nested file": ("a.json", f'{{"a": {"[" * 100_000}', "is not JSON (maximum recursion depth"),
    "text by the name of rows": (
        "a.jsonl",
        PLAIN,
        "no rows of JSON (it begins with 'The Zanto was",
    ),
    "text by the name of columns": ("a.parquet", PLAIN, ": text, and no parquet file; rename it"),
    "half a zst": ("a.zst", long_frame(LINES.encode())[:-9], ": damaged, or cut off (zstd: "),
    "half a bz2": ("a.bz2", bz2.compress(LINES.encode())[:-9], ": damaged, or cut off (bz2: "),
    "half a Parquet": ("a.parquet", files.parquet(ROWS)[:-9], ": not a whole Parquet file ("),
    "a broken Arrow stream": ("a.arrow", files.broken_arrow(), ": not a whole arrow file ("),
    "an archive": ("a.txt", b"PK\x03\x04\0", ": a zip archive; unpack it"),
    "a tar archive": ("a.txt.gz", gzip.compress(tar(LINES)), ": a tar archive; unpack it"),
    "UTF-16 without a mark": (
        "a.txt",
        ("Yes, no. " * 9).encode("utf-16-le"),
        ": no text, or UTF-16",
    ),
    "a web archive": (
        "a.warc.wet",
        "WARC/1.0\r\nWARC-Type: warcinfo\r\n",
        ": a web archive; write",
    ),
    "wikiextractor's tags": ("wiki_00", '<doc id="1" url="a">\nA\n</doc>\n', "; let it write JSON"),
    "a dump of Wikimedia": (
        "a.xml.bz2",
        bz2.compress(b"<mediawiki>\n"),
        ": XML; write its texts as",
    ),
    "TEI": (
        "a.tei",
        '<!-- a --><!-- b -->\n<TEI xmlns="http://www.tei-c.org/ns/1.0">\n<teiHeader/>\n',
        ": markup; write its texts as JSON lines, or set data.form: text",
    ),
    "a feed": ("a.rss", '<rss version="2.0"><channel>', ": markup; write its texts as"),
    "a page below a comment": ("a.html", "<!-- a -->\n<html><p>A", ": a web page; download"),
    "subtitles": (
        "a.srt",
        "1\r\n00:00:01,000 --> 00:00:02,000\r\nA\r\n",
        ": subtitles; write what is said as plain text, or set data.form: text",
    ),
    "subtitles of the web": ("a.vtt", "WEBVTT\n\n00:01.000 --> 00:04.000\nA\n", ": subtitles;"),
    "PostScript": ("a.ps", "%!PS-Adobe-3.0\n", ": PostScript; give its text"),
    "rows as Python prints them": (
        "a.txt",
        "{'text': 'Ada met Bo.'}\n",
        ": rows as Python prints them; write them with json.dumps, or set data.form: text",
    ),
    "a PDF": ("a.txt", b"%PDF-1.7\n", ": a PDF; give its text"),
    "7-Zip": ("a.7z", b"7z\xbc\xaf\x27\x1c\0\4", ": a 7-Zip archive; unpack it"),
    "RAR": ("a.rar", b"Rar!\x1a\7\1\0", ": a RAR archive; unpack it"),
    "lz4": ("a.jsonl.lz4", b"\x04\x22\x4d\x18\x64\x40", ": compressed with lz4; unpack it, or"),
    "compress": ("a.txt.Z", b"\x1f\x9d\x90\x61", ": compressed with compress; unpack it, or"),
    "gzip of gzip": (
        "a.gz.gz",
        gzip.compress(gzip.compress(b"a")),
        ": compressed twice; unpack it",
    ),
    "Avro": ("a.avro", b"Obj\x01\x04\x14avro.codec", ": an Avro file; write its rows as Parquet"),
    "ORC": ("a.txt", orc(), ": an ORC file; write its rows as Parquet or JSON lines"),
    "Feather of version 1": ("a.feather", b"FEA1\0\0\0\0\0\0", ": a Feather file of version 1; w"),
    "a pickle": ("a.pkl", pickle.dumps(TEXTS), ": a pickle; write its rows as Parquet or JSON"),
    "an old pickle": ("a.pkl", pickle.dumps(TEXTS, 2), ": a pickle; write its rows as"),
    "NumPy": ("a.npy", b"\x93NUMPY\x01\0v\0{'descr'", ": a NumPy array; write its texts as"),
    "Gigaword": (
        "afp_eng_199405",
        '<DOC id="AFP_ENG_19940512.0004" type="story" >\n<HEADLINE>\n',
        ": SGML; write its texts as JSON lines",
    ),
    "a page named .xls": (
        "a.xls",
        "<table><tr><td>text</td></tr></table>",
        ": a web page; open it in Excel or LibreOffice, and save it as .xlsx",
    ),
    "a page named .xlsx": (
        "a.xlsx",
        '<?xml version="1.0"?>\n<?mso-application progid="Excel.Sheet"?>\n',
        ": XML; open it in Excel or LibreOffice, and save it as .xlsx",
    ),
    "ISO-2022-JP": (
        "a.txt",
        "東京で会った。\n".encode("iso-2022-jp"),
        ": text in an encoding of ISO 2022; save it as UTF-8",
    ),
    "a text in two languages": (
        "a.jsonl",
        '{"text": {"en": "a", "de": "b"}}',
        ": row 1: its 'text' is dict, and no text; correct it",
    ),
    "Latin-1": ("a.txt", PLAIN.encode() + b"\xe9", ": not UTF-8 at byte "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_one_line_says_what_to_do(name: str, tmp_path: Path) -> None:
    file, content, problem = REFUSED[name]
    path = write(tmp_path / "folder" / file, content)
    with pytest.raises(UserError) as error:
        read_documents(path)
    message = str(error.value)
    assert message.startswith(str(path)) and problem in message and "\n" not in message
