"""Recognition of files by their first bytes: compression, encoding and form.

A name is a hint, for what the bytes leave open: plain text and a table look alike. JSON is told
from text by how it begins, so a corpus of JSON under another name is never read as text. The price
is one read of HEAD bytes for each file before any of it is used.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

from detalbert.errors import Cure, UserError
from detalbert.reading.json_values import holds_rows
from detalbert.reading.packing import (
    UTF8,
    Decoder,
    as_utf8,
    decompress,
    find_compression,
    find_encoding,
)
from detalbert.reading.storage import File, read
from detalbert.settings.forms import (
    ARROW,
    JSON,
    JSON_LINES,
    ODS,
    PARQUET,
    SHEETS,
    TABLE,
    TEXT,
    XLSX,
)

# The forms of names, in small letters, without the ending of a compression.
ENDINGS = {
    ".jsonl": JSON_LINES,
    ".ndjson": JSON_LINES,
    ".json": JSON,
    ".csv": TABLE,
    ".tsv": TABLE,
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".xlsx": XLSX,
    ".xlsm": XLSX,
    ".ods": ODS,
    ".txt": TEXT,
    ".md": TEXT,
}
PACKED = (".gz", ".zst", ".bz2", ".xz")
_BINARY = (PARQUET, ARROW, *SHEETS)
END_MARK = "<|endoftext|>"  # what some corpora have between documents
HEAD = 1 << 16  # bytes of content by which a file is known

_AS_ROWS = "write its rows as Parquet or JSON lines"
_UNPACK = "unpack it, or pack it with gzip or zstd"
# What some other files begin with: what they are, and what to do.
_FOREIGN = {
    rb"PK\x03\x04": ("a zip archive", "unpack it; save a Word document as plain text"),
    rb"\xd0\xcf\x11\xe0": (
        "a workbook of before 2007 or with a password",
        "save it as .xlsx without one",
    ),
    rb"%PDF": ("a PDF", "give its text"),
    rb"%!PS": ("PostScript", "give its text"),
    rb"\{\\rtf": ("RTF", "save it as plain text"),
    rb"version https://git-lfs": (
        "a pointer of Git LFS",
        "fetch the file itself with git lfs pull",
    ),
    rb"\x89HDF": ("an HDF5 file", _AS_ROWS),
    rb"SQLite format 3": ("a SQLite database", "write its rows as CSV or JSON lines"),
    rb"Obj\x01": ("an Avro file", _AS_ROWS),
    rb"ORC.{,999}\x00": ("an ORC file", _AS_ROWS),
    rb"FEA1\x00": ("a Feather file of version 1", "write it with version 2, or as Parquet"),
    rb"\x80[\x02-\x05]": ("a pickle", _AS_ROWS),
    rb"\x93NUMPY": ("a NumPy array", "write its texts as JSON lines"),
    rb"7z\xbc\xaf": ("a 7-Zip archive", "unpack it"),
    rb"Rar!\x1a": ("a RAR archive", "unpack it"),
    rb"\x04\x22\x4d\x18": ("compressed with lz4", _UNPACK),
    rb"\x1f\x9d": ("compressed with compress", _UNPACK),
    rb"LZIP[\x00\x01]": ("compressed with lzip", _UNPACK),
}
# A zip archive by the names of its members: Excel's folder, and the type that comes first in .ods.
_XLSX_MEMBER = re.compile(rb"PK\x03\x04.{26}xl/", re.DOTALL)
_ODS_TYPE = re.compile(
    rb"PK\x03\x04.{26}mimetype.{0,64}?application/vnd\.oasis\.opendocument\.spreadsheet", re.DOTALL
)
_TAR = slice(257, 262)  # where a tar archive says that it is one
# The same of text; a file that is named as text is read all the same.
_MARKUP = {
    r"(?i)\s*<(!doctype\s+html|html|table)\b": ("a web page", "download the file itself"),
    r"\s*<(\?xml|mediawiki)\b": ("XML", "write its texts as JSON lines"),
    r"\s*<doc id=": ("text between tags of wikiextractor", "let it write JSON"),
    r"\s*<(DOC|srcset|refset|tstset)\b": ("SGML", "write its texts as JSON lines"),
    r"WARC/\d": ("a web archive", "write its texts as JSON lines"),
    r"\s*(WEBVTT\b|\d+\s+[\d:]+[,.]\d+ -->)": ("subtitles", "write what is said as plain text"),
    # Two tags; between words such as <s> and <unk> is a space.
    r"\s*<\w[^<>]*>(?=<|\s*\n)\s*<[\w/!?]": ("markup", "write its texts as JSON lines"),
}
_COMMENTS = re.compile(r"(?:\s*<!--(?:(?!-->).)*-->)*", re.DOTALL)  # before the markup
# Rows as Python prints them: JSON has other quotes.
_PRINTED_ROW = re.compile(r"\s*(\[\s*)?\{\s*'[^'\n]*'\s*:")
_WEB_SHEET = "open it in Excel or LibreOffice, and save it as .xlsx"  # what web sites name .xls
# ISO-2022-JP, KR and CN change the alphabet so, and are ASCII otherwise.
_ISO_2022 = re.compile(r"\x1b\$[@AB()]")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a]")  # characters that are in no text but by mistake
_MAPPING = re.compile(r'\s*(\[\s*)?\{\s*(\}\s*(\n|$)|"(?:[^"\\]|\\.)*"\s*:)')
_LIST = re.compile(r'\s*\[\s*["\[\]]')
_DATA = re.compile(r'"data"\s*:\s*\[')
# Its `raw_decode` returns where a value ends, and takes what follows for no mistake.
_DECODER = json.JSONDecoder()


class Content(NamedTuple):
    """A file and how its content is read."""

    file: File
    form: str
    compression: str = ""
    encoding: str = UTF8
    sheet: str | None = None  # of a spreadsheet; default: the first
    has_carriage_returns: bool = False  # at the ends of a text's lines, and nothing else there
    has_end_marks: bool = False  # END_MARK between the documents of a text

    @property
    def is_packed(self) -> bool:
        """Whether its content is other bytes than the file's, so it is read from the start."""
        return bool(self.compression) or self.encoding != UTF8


def ending_of(address: str) -> str:
    """Return the ending of a name in small letters, such as .csv of A.CSV.gz."""
    name = PurePath(address.lower())
    return PurePath(name.stem).suffix if name.suffix in PACKED else name.suffix


def stem_of(address: str) -> str:
    """Return the name of a file without its endings."""
    name = PurePath(address)
    inner = PurePath(name.stem) if name.suffix.lower() in PACKED else name
    return inner.stem


def recognise(
    file: File, form: str | None = None, plain: str = TEXT, sheet: str | None = None
) -> Content:
    """Return what a file holds.

    Args:
        form: one of FORMS, as the user says; default: found by the first bytes.
        plain: TABLE or TEXT, for text whose name does not say it.
        sheet: name of a spreadsheet's sheet that is read; default: the first.

    Raises:
        UserError: it is neither text nor a form of FORMS, or not what the name promises.
    """
    head = b"".join(read(file.address, begin=0, end=min(HEAD, file.size)))
    compression = find_compression(head)
    if compression:
        content = decompress(_blocks(file), compression=compression, where=file.address)
        head = first_bytes(content, HEAD)
        if find_compression(head):
            raise UserError("compressed twice", key=file.address, cure="unpack it once")

    # Binary forms say what they are, whatever the user says.
    binary = _binary_form(head)
    if binary:
        return Content(file, form=binary, compression=compression, sheet=sheet)
    if form in _BINARY:
        raise UserError(
            f"no {form} file by its first bytes",
            key=file.address,
            cure=Cure("correct data.form", by_flag="correct --form"),
        )

    _check_foreign(head, file.address)
    encoding = find_encoding(head)
    # The head may end inside a character.
    text = Decoder(file.address, encoding=encoding)(head, last=False)
    if form is None:
        form = _text_form(file, text=text, plain=plain)
    return Content(
        file,
        form=form,
        compression=compression,
        encoding=encoding,
        # The last one may begin a line end of two characters.
        has_carriage_returns=form == TEXT and "\r" in text[:-1] and "\n" not in text,
        has_end_marks=form == TEXT and END_MARK in text,
    )


def check_sheet(contents: Sequence[Content], sheet: str | None) -> None:
    """Raise UserError if a sheet is named, and none of some files is a spreadsheet."""
    if sheet is not None and contents and not any(content.form in SHEETS for content in contents):
        raise UserError(
            f"{contents[0].file.address} is no spreadsheet", key="data.sheet", cure="leave it out"
        )


def read_content(content: Content, begin: int = 0) -> Iterator[bytes]:
    """Yield the content of a file in blocks: text in UTF-8, without a byte order mark.

    Args:
        begin: the first byte that is read; 0 if it is packed.
    """
    address = content.file.address
    if not content.is_packed:
        return read(address, begin=begin, end=content.file.size)
    blocks = _blocks(content.file)
    if content.compression:
        blocks = decompress(blocks, compression=content.compression, where=address)
    if content.encoding != UTF8:
        blocks = as_utf8(blocks, encoding=content.encoding, where=address)
    return blocks


def _blocks(file: File) -> Iterator[bytes]:
    return read(file.address, begin=0, end=file.size)


def first_bytes(blocks: Iterable[bytes], count: int) -> bytes:
    """Return the first `count` bytes of some blocks, or all if there are fewer."""
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) >= count:
            break
    return bytes(content[:count])


def check_is_text(head: bytes, where: str) -> None:
    """Raise UserError if a file that begins with `head` holds something else than text."""
    binary = _binary_form(head)
    if binary:
        raise UserError(f"a file of {binary}", key=where, cure="give plain text")
    _check_foreign(head, where)


def _binary_form(head: bytes) -> str:
    if head.startswith(b"PAR1"):
        return PARQUET
    # An Arrow file, or a stream, whose first message begins with the mark of a long length.
    if head.startswith((b"ARROW1", b"\xff\xff\xff\xff")):
        return ARROW
    if _ODS_TYPE.match(head):
        return ODS
    if head.startswith(b"PK") and _XLSX_MEMBER.search(head):
        return XLSX
    return ""


def _check_foreign(head: bytes, where: str) -> None:
    """Raise UserError if a file begins as one that is read nowhere."""
    for magic, (problem, cure) in _FOREIGN.items():
        if re.match(magic, head, flags=re.DOTALL):
            raise UserError(problem, key=where, cure=cure)
    if head[_TAR] == b"ustar":
        raise UserError("a tar archive", key=where, cure="unpack it")


def _text_form(file: File, text: str, plain: str) -> str:
    """Return the form of a text by its beginning, and by the name where that leaves a choice."""
    # JSON by how it begins, whatever the name; a broken beginning only under a name of JSON.
    ending = ending_of(file.address)
    promised = ENDINGS.get(ending)
    is_promised = promised in (JSON_LINES, JSON) and text.lstrip()[:1] in ("{", "[")
    if is_promised or _begins_json(text):
        return _json_form(text, promised=promised)
    if not text.strip():
        return promised if promised in (JSON_LINES, JSON, TABLE) else plain
    # Neither JSON nor empty: plain text or a table.
    _check_plain(file, text, promised=promised, plain=plain)
    if promised in (JSON_LINES, JSON):
        first_line, _, _ = text.partition("\n")
        raise UserError(
            f"no rows of JSON (it begins with {first_line!r:.60})",
            key=file.address,
            cure=Cure(
                "correct it, or name what it is in data.form",
                by_flag="correct it, or name what it is in --form",
            ),
        )
    if promised in _BINARY:
        raise UserError(f"text, and no {promised} file", key=file.address, cure="rename it")
    return TABLE if promised == TABLE else plain


def _check_plain(file: File, text: str, promised: str | None, plain: str) -> None:
    """Raise UserError if what is not JSON is no text, or markup that its name does not promise."""
    if _PRINTED_ROW.match(text):
        raise UserError(
            "rows as Python prints them",
            key=file.address,
            cure=_or_as_text("write them with json.dumps", plain),
        )
    if promised != TEXT:
        text_from_markup = _COMMENTS.sub("", text, count=1)
        for beginning, (problem, cure) in _MARKUP.items():
            if re.match(beginning, text_from_markup):
                if promised in SHEETS or ending_of(file.address) == ".xls":
                    cure = _WEB_SHEET
                raise UserError(problem, key=file.address, cure=_or_as_text(cure, plain))
    check_controls(text, where=file.address, cure=_or_as_text("save it as UTF-8", plain))


def _or_as_text(cure: str, plain: str) -> str | Cure:
    """Return a cure for a file that may be meant as plain text."""
    return Cure(f"{cure}, or set data.form: text", by_flag=cure) if plain == TEXT else cure


def check_controls(text: str, where: str, cure: str | Cure) -> None:
    """Raise UserError if so many characters of a text are controls that it is none, or they change
    its alphabet.
    """
    if _ISO_2022.search(text):
        raise UserError("text in an encoding of ISO 2022", key=where, cure="save it as UTF-8")
    controls = _CONTROLS.findall(text)
    if len(controls) > max(16, len(text) // 8):
        problem = "no text, or UTF-16 without a byte order mark (it has control characters)"
        raise UserError(problem, key=where, cure=cure)


def _begins_json(text: str) -> bool:
    """Return whether a text begins with a JSON mapping, a list of these, or another whole list."""
    if _MAPPING.match(text):
        return True
    if not _LIST.match(text):
        return False
    # Nothing else is on the line on which the list ends.
    end = _find_end(text)
    line_rest, _, _ = text[end:].partition("\n")
    return end > 0 and not line_rest.strip()


def _find_end(text: str) -> int:
    """Return where the JSON value ends with which a text begins; the text's length if only its end
    is missing, 0 if it is no JSON.
    """
    start = len(text) - len(text.lstrip())
    try:
        _, end = _DECODER.raw_decode(text, idx=start)
        return end
    except ValueError as error:
        position = getattr(error, "pos", 0)
        is_cut = str(error).startswith("Unterminated string") or position >= len(text.rstrip())
        return len(text) if is_cut else 0
    except RecursionError:
        return len(text)


def _json_form(text: str, promised: str | None) -> str:
    """Return JSON_LINES if the first line is a row, JSON if all of the text is one value, or values
    of several lines.
    """
    text = text.lstrip()
    line, line_end, later_lines = text.partition("\n")
    if line.startswith("["):
        return JSON
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        if _DATA.search(text):
            return JSON
        if not line_end:  # the first line is longer than the head
            return JSON if promised == JSON else JSON_LINES
        # A mapping goes on over several lines, or the first line is broken.
        if _find_end(text) > len(line):
            return JSON
        is_line = promised == JSON_LINES or later_lines.lstrip().startswith("{")
        return JSON_LINES if is_line else JSON
    if later_lines.strip():
        return JSON_LINES
    return JSON if holds_rows(row) else JSON_LINES
