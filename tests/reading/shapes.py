"""Ways to write rows to a file, drawn: form, compression, encoding and ending."""

import csv
import json
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from detalbert.settings import forms
from tests.reading import files
from tests.reading.files import Row

CHARACTERS = "ab é東😀\"',;\t|\\{}[]:#01\r\n\u2028\x85\u00ad"
IN_BYTES = (forms.PARQUET, forms.ARROW, forms.JSON, forms.JSON_LINES)  # known without a name


class Shape(NamedTuple):
    """How rows are written."""

    form: str
    variant: str
    encoding: str = "utf-8"
    compression: str = ""
    cuts: tuple[float, ...] = ()  # where a member or frame of a compressed file ends
    name: str = ""  # the ending that promises a form
    packed_name: str = ""  # the ending that promises a compression
    is_told: bool = False  # whether data.form says the form

    @property
    def is_known(self) -> bool:
        """Whether data.form tells its form, or its bytes, or its name."""
        name = self.name.lower()
        is_right = name in files.ENDINGS[self.form]
        is_cut = self.variant == "rows" and name in files.ENDINGS[forms.JSON_LINES]
        return self.is_told or is_right or self.form in IN_BYTES and not is_cut


VARIANTS = {
    forms.JSON_LINES: ("\n", "\r\n"),
    forms.JSON: ("list", "indented", "data", "articles", "rows"),  # rows: each on several lines
    forms.TABLE: (",", ";", "\t", "|", "sep=;", "all quoted", "carriage returns"),
    forms.PARQUET: ("",),
    forms.ARROW: ("file", "stream"),
}


@st.composite
def shapes(draw: st.DrawFn, variants: dict[str, tuple[str, ...]] = VARIANTS) -> Shape:
    """Ways to write rows."""
    form = draw(st.sampled_from(sorted(variants)))
    is_text = form not in (forms.PARQUET, forms.ARROW)
    compression = draw(st.sampled_from(sorted(files.PACKED)))
    right = draw(st.sampled_from(files.ENDINGS[form]))
    wrong = draw(st.sampled_from([".csv", ".jsonl", ".json", ".parquet", ".txt", ".dat", ""]))
    return Shape(
        form,
        variant=draw(st.sampled_from(variants[form])),
        encoding=draw(st.sampled_from(sorted(files.MARKS))) if is_text else "",
        compression=compression,
        cuts=tuple(sorted(draw(st.lists(st.floats(0, 1), max_size=2)))),
        name=draw(st.sampled_from([right, right.upper(), wrong])),
        packed_name=draw(st.sampled_from([files.PACKED[compression], "", ".gz"])),
        is_told=draw(st.booleans()),
    )


def write(folder: Path, shape: Shape, content: bytes | str) -> Path:
    """Encode, cut, compress and write the content of a file."""
    if isinstance(content, str):
        content = files.encode(content, shape.encoding)
    ends = [round(cut * len(content)) for cut in shape.cuts]
    pairs = zip([0, *ends], [*ends, len(content)], strict=True)
    members = [content[begin:end] for begin, end in pairs]
    path = folder / f"rows{shape.name}{shape.packed_name}"
    path.write_bytes(files.pack(members, shape.compression))
    return path


def content_of(shape: Shape, rows: list[Row], articles: list[Row]) -> bytes | str:
    """Rows in a form; `articles` are the same rows in SQuAD's shape."""
    if shape.form == forms.PARQUET:
        return files.parquet(rows)
    if shape.form == forms.ARROW:
        return files.arrow(rows, is_stream=shape.variant == "stream")
    if shape.form == forms.JSON_LINES:
        return files.json_lines(rows, line_end=shape.variant)
    if shape.form == forms.JSON:
        return json_text(shape.variant, rows, articles)
    return table_text(shape.variant, rows)


def json_text(variant: str, rows: list[Row], articles: list[Row]) -> str:
    if variant == "rows":
        return "\n".join(json.dumps(row, indent=1) for row in rows)
    values: dict[str, Any] = {
        "list": rows,
        "indented": rows,
        "data": {"version": "2", "data": rows, "made": {"by": ["us"]}},
        "articles": {"version": "2", "data": articles},
    }
    indent = 2 if variant == "indented" else None
    return json.dumps(values[variant], ensure_ascii=variant == "data", indent=indent)


def table_text(variant: str, rows: list[Row]) -> str:
    """A table whose cells are texts: lists and mappings in JSON."""
    cells = [{name: cell_of(value) for name, value in row.items()} for row in rows]
    if variant == "all quoted":
        return files.table(cells, quoting=csv.QUOTE_ALL, line_end="\n")
    if variant == "carriage returns":
        return files.table(cells, quoting=csv.QUOTE_ALL, line_end="\r")
    if variant == "sep=;":
        return "sep=;\r\n" + files.table(cells, separator=";")
    return files.table(cells, separator=variant)


def cell_of(value: Any) -> Any:
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, (list, dict)) else value
