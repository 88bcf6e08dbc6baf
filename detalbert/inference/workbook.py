"""Rows written to a workbook, .xlsx by openpyxl or .ods by its XML, one at a time.

A text is a text for the program that opens it, also one that begins as a formula, so it has no
apostrophe as in predictions.csv. Control characters, which a workbook cannot have, are escaped.
openpyxl cuts a text to the 32,767 characters that Excel allows.
"""

import contextlib
import logging
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from detalbert.escapes import escape_controls
from detalbert.files import OpenFile

Row = Sequence[str | int | float]
# Characters of a cell of .xlsx.
MOST_CHARACTERS = 32_767
log = logging.getLogger(__name__)
_NO_CHARACTERS = re.compile("[\ufffe\uffff]")
_SPACES = re.compile(r"^ | {2,}", re.MULTILINE)
_TYPE = "application/vnd.oasis.opendocument.spreadsheet"
_NAMES = "urn:oasis:names:tc:opendocument:xmlns"
_MANIFEST = f"""<?xml version="1.0" encoding="UTF-8"?>
<manifest:manifest xmlns:manifest="{_NAMES}:manifest:1.0" manifest:version="1.3">
<manifest:file-entry manifest:full-path="/" manifest:media-type="{_TYPE}"/>
<manifest:file-entry manifest:full-path="content.xml" manifest:media-type="text/xml"/>
</manifest:manifest>
"""
_BEGIN = f"""<?xml version="1.0" encoding="UTF-8"?>
<office:document-content xmlns:office="{_NAMES}:office:1.0" xmlns:table="{_NAMES}:table:1.0"
 xmlns:text="{_NAMES}:text:1.0" office:version="1.3"><office:body><office:spreadsheet>
<table:table table:name="answers">
"""
_END = "</table:table></office:spreadsheet></office:body></office:document-content>\n"


@contextlib.contextmanager
def open_workbook(path: Path, open_file: OpenFile) -> Iterator[Callable[[Row], None]]:
    """Yield a function that appends a row to a file that `open_file`, of `whole_files`, opens.
    Raises OSError if it cannot be written.
    """
    open_form = _open_xlsx if path.suffix.lower() == ".xlsx" else _open_ods
    with open_form(open_file(path, binary=True)) as append:
        yield append


@contextlib.contextmanager
def _open_xlsx(file: Any) -> Iterator[Callable[[Row], None]]:
    import openpyxl  # takes a while, and few write workbooks

    workbook = openpyxl.Workbook(write_only=True)
    worksheet = workbook.create_sheet("answers")
    cut = 0  # texts

    def as_cell(value: str | int | float) -> Any:
        nonlocal cut
        if not isinstance(value, str):
            return value
        text = _printable(value)
        cut += len(text) > MOST_CHARACTERS
        cell = openpyxl.cell.WriteOnlyCell(worksheet, value=text)
        cell.data_type = "s"  # no formula, whatever it begins with
        return cell

    yield lambda row: worksheet.append([as_cell(value) for value in row])
    workbook.save(file)
    if cut:
        log.warning(
            "%d text(s) are cut to the %s characters of a cell of .xlsx; .ods has them whole",
            cut,
            f"{MOST_CHARACTERS:,}",
        )


@contextlib.contextmanager
def _open_ods(file: Any) -> Iterator[Callable[[Row], None]]:
    with zipfile.ZipFile(file, "w", compression=zipfile.ZIP_DEFLATED) as archive:
        # Programs know the file by its first member, which is not compressed.
        archive.writestr("mimetype", _TYPE, compress_type=zipfile.ZIP_STORED)
        archive.writestr("META-INF/manifest.xml", _MANIFEST)
        with archive.open("content.xml", "w", force_zip64=True) as content:
            content.write(_BEGIN.encode())

            def append(row: Row) -> None:
                cells = "".join(map(_ods_cell, row))
                content.write(f"<table:table-row>{cells}</table:table-row>\n".encode())

            yield append
            content.write(_END.encode())


def _ods_cell(value: str | int | float) -> str:
    if not isinstance(value, str):
        kind = f'office:value-type="float" office:value="{value}"'
        return f"<table:table-cell {kind}><text:p>{value}</text:p></table:table-cell>"
    if not value:
        return "<table:table-cell/>"
    # Of several spaces one would be left.
    text = escape(_printable(value))
    text = _SPACES.sub(lambda spaces: f'<text:s text:c="{len(spaces[0])}"/>', text)
    text = text.replace("\t", "<text:tab/>")
    paragraphs = "".join(f"<text:p>{line}</text:p>" for line in text.split("\n"))
    return f'<table:table-cell office:value-type="string">{paragraphs}</table:table-cell>'


def _printable(text: str) -> str:
    return _NO_CHARACTERS.sub("\ufffd", escape_controls(text))
