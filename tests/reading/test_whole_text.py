"""The text in which one question is answered: every encoding, compressed or not; what is none."""

import bz2
import codecs
import gzip
import io
import lzma
import os
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.reading.whole_text import read_text
from predict import read_context
from tests.conftest import max_examples

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ENCODINGS = {
    "utf-8": b"",
    "utf-8-sig": b"",  # the codec writes the mark itself
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd.compress,
}
# Lines without control characters: what has many of these is no text.
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufeff"))
TEXTS = st.lists(TEXTS).map("\n".join)


@max_examples(200)
@given(
    text=TEXTS.map("The ship {}".format),
    encoding=st.sampled_from([*ENCODINGS]),
    ending=st.sampled_from([*PACKERS]),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_every_encoding_and_compression_gives_the_text(
    text, encoding, ending, line_end, tmp_path_factory
):
    path = tmp_path_factory.getbasetemp() / f"context.txt{ending}"
    content = ENCODINGS[encoding] + text.replace("\n", line_end).encode(encoding)
    path.write_bytes(PACKERS[ending](content))

    assert read_text(path, max_bytes=1_000_000) == text
    assert read_context(None, path) == text


def test_a_pipe_is_read_once():
    reading_end, writing_end = os.pipe()

    def write() -> None:
        with open(writing_end, "wb") as file:
            file.write(b"A ship.\r\nAnother.")

    thread = threading.Thread(target=write)
    thread.start()
    path = Path(f"/proc/self/fd/{reading_end}")
    assert read_text(path, max_bytes=100) == "A ship.\nAnother."
    thread.join()
    os.close(reading_end)


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("word/document.xml", "<w/>")
    return file.getvalue()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("text"), io.BytesIO())
    return file.getvalue()


REFUSED = {
    "not UTF-8 at byte 1": b"a\xe9",
    "not UTF-16-LE at byte 4": codecs.BOM_UTF16_LE + b"a\0b",
    "compressed with lzip; unpack it": b"LZIP\x01\x0c...",
    "a zip archive; unpack it; save a Word document as plain text": _zip(),
    "no text, or UTF-16 without a byte order mark": "The ship Aurora sails.".encode("utf-16-le"),
    "a PDF; give its text": b"%PDF-1.7 ...",
    "RTF; save it as plain text": rb"{\rtf1 A ship.}",
    "a tar archive; unpack it": _tar(),
    "a file of parquet; give plain text": b"PAR1....",
    "too long, 30,000 bytes at most; cut it": b"x" * 30_001,
    "damaged, or cut off (gzip: ": gzip.compress(os.urandom(1000))[:500],
}


@pytest.mark.parametrize("message", [*REFUSED])
def test_what_is_no_text_is_told_by_its_first_bytes(message, tmp_path):
    path = tmp_path / "context.txt"
    path.write_bytes(REFUSED[message])
    with pytest.raises(UserError) as error:
        read_text(path, max_bytes=30_000)
    assert str(error.value).startswith(f"{path}: {message}")


def test_a_packed_text_is_read_to_its_limit_only(tmp_path):
    path = tmp_path / "context.txt.gz"
    path.write_bytes(gzip.compress(b" " * 50_000_000))
    with pytest.raises(UserError, match="too long, 1,000 bytes"):
        read_text(path, max_bytes=1000)


def test_the_name_of_a_file_is_no_context(tmp_path):
    path = tmp_path / "ships.txt"
    path.write_text("A ship.")
    with pytest.raises(UserError) as error:
        read_context(str(path), None)
    assert str(error.value) == f"--context: {path} is a file; give it as --context-file"
    # A text is none, however long it is, and whatever is in it.
    assert read_context("A ship.\n" * 1000, None).startswith("A ship.")
    assert read_context("a\0b", None) == "a\0b"


def test_a_text_may_begin_as_the_name_of_a_program(tmp_path):
    path = tmp_path / "context.txt"
    for text in ("LZIP packs files.", "Obj is a class.", "ORC and elf.", "7z packs files, too."):
        path.write_text(text)
        assert read_text(path, max_bytes=100) == text
