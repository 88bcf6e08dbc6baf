"""From the bytes of a file to its content: decompressed, in UTF-8 without a byte order mark.

How a file is packed is in its first bytes, whatever its name says. Everything above this module
reads UTF-8 alone; a file in UTF-16 costs a second pass over its bytes for that, as a compressed one
does.
"""

import bz2
import codecs
import io
import itertools
import lzma
import sys
from collections.abc import Iterable, Iterator

import pyarrow

from detalbert.errors import UserError, as_user_error, first_line
from detalbert.reading.storage import BLOCK, as_file

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

UTF8 = "utf-8"
_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x50\x2a\x4d\x18": "zstd",  # a frame without content, with which pzstd begins a file
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
}
_MARK = "\ufeff"  # that is one in every encoding
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # before UTF-16's, with which it begins
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# A frame of `zstd --long=31`; the decoder's own limit is 27.
_ZSTD_OPTIONS = {int(zstd.DecompressionParameter.window_log_max): 31}


def find_compression(head: bytes) -> str:
    """Return the compression of a file that begins with `head`; "" for none."""
    for magic, name in _COMPRESSIONS.items():
        if head.startswith(magic):
            return name
    return ""


def find_encoding(head: bytes) -> str:
    """Return the encoding of a text that begins with `head`, by its byte order mark."""
    for mark, name in _MARKS.items():
        if head.startswith(mark):
            return name
    return UTF8


def decompress(blocks: Iterator[bytes], compression: str, where: str) -> Iterator[bytes]:
    """Yield the content of a compressed file in blocks of at most BLOCK bytes.

    Args:
        blocks: the bytes of the file.
        compression: as `find_compression` names it.
        where: the file, for messages.

    Raises:
        UserError: it is damaged, or ends too early.
    """

    def damaged(error: BaseException) -> UserError:
        return UserError(
            f"damaged, or cut off ({compression}: {first_line(error)})",
            key=where,
            cure="copy it again",
        )

    # In blocks: some kB can be gigabytes of content.
    with as_user_error(damaged), _open(as_file(blocks), compression) as file:
        while block := file.read(BLOCK):
            yield block


def _open(file: io.BufferedReader, compression: str) -> io.BufferedIOBase:
    """Return a file of the content. Each of these reads all members, streams or frames."""
    if compression == "zstd":
        return zstd.open(file, options=_ZSTD_OPTIONS)
    if compression == "xz":
        return lzma.LZMAFile(file)
    if compression == "bz2":
        return bz2.BZ2File(file)  # pyarrow refuses a stream without content
    return pyarrow.input_stream(file, compression=compression)


class Decoder:
    """Text of consecutive bytes of a file, which may end inside a character.

    Args:
        where: the file, for messages.
        at: number of the first byte.
        encoding: of the bytes.
    """

    def __init__(self, where: str, at: int = 0, encoding: str = UTF8) -> None:
        self.where = where
        self.at = at
        self.decoder = codecs.getincrementaldecoder(encoding)()

    def __call__(self, content: bytes, last: bool) -> str:
        """Return the text of the next bytes. Raises UserError if the encoding has not these."""
        incomplete_character, _ = self.decoder.getstate()
        try:
            text = self.decoder.decode(content, final=last)
        except UnicodeDecodeError as error:
            byte = self.at - len(incomplete_character) + error.start
            raise not_text(self.where, encoding=error.encoding, byte=byte) from None
        self.at += len(content)
        return text


def as_utf8(blocks: Iterable[bytes], encoding: str, where: str) -> Iterator[bytes]:
    """Yield text of `encoding` in UTF-8, without its byte order mark, and without those at the
    beginnings of lines, where files were put together. Raises as `Decoder` does.
    """
    decoder = Decoder(where, encoding=encoding)
    begins_line = True
    for block in itertools.chain(blocks, [b""]):
        text = decoder(block, last=not block)
        if text:
            if begins_line:
                text = text.removeprefix(_MARK)
            begins_line = text.endswith("\n")
            yield text.replace(f"\n{_MARK}", "\n").encode()


def not_text(where: str, encoding: str, byte: int) -> UserError:
    """Return the error for a byte that the encoding of a file has not."""
    return UserError(
        f"not {encoding.upper()} at byte {byte}", key=where, cure="save the file as UTF-8"
    )
