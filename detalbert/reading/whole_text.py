"""The text of one small file, such as the context of a question.

It is in memory as a whole, so a pipe can be read, too: its bytes come once.
"""

from pathlib import Path

from detalbert.errors import UserError
from detalbert.reading.forms import check_controls, check_is_text, first_bytes
from detalbert.reading.packing import Decoder, decompress, find_compression, find_encoding


def read_text(path: Path, max_bytes: int) -> str:
    """Return the text of a file, which may be compressed, and in UTF-16 with a byte order mark.

    Args:
        max_bytes: of the text; a longer one is not read to its end.

    Raises:
        UserError: it cannot be read, is too long, or is no text.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise UserError(f"cannot read it ({error.strerror})", key=where) from None
    _check(content, where=where, max_bytes=max_bytes)

    compression = find_compression(content)
    if compression:
        # Some kB can be gigabytes of text.
        blocks = decompress(iter([content]), compression=compression, where=where)
        content = first_bytes(blocks, max_bytes + 1)
        _check(content, where=where, max_bytes=max_bytes)

    text = Decoder(where, encoding=find_encoding(content))(content, last=True)
    check_controls(text, where=where, cure="save it as UTF-8")
    # As Python reads a text: line ends of Windows, and of old tables, are line feeds.
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check(content: bytes, where: str, max_bytes: int) -> None:
    check_is_text(content, where)
    if len(content) > max_bytes:
        raise UserError(f"too long, {max_bytes:,} bytes at most", key=where, cure="cut it")
