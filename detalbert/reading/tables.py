"""Rows of CSV and its relatives.

A row that does not fit the header is never read as if it did: a separator too many or too few moves
cells under other names. The first line decides the separator, as the header has no free text.
"""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from detalbert.errors import UserError
from detalbert.reading.notes import Notes

_SEPARATORS = ",;\t|"
# The line that tells Excel the separator.
_EXCEL = re.compile(r'"?sep=([^"\w\r])"?\s*', flags=re.IGNORECASE)
# A cell of the line below the header of a table in Markdown.
_RULE = re.compile(r"\s*(:?--+:?\s*)?")
_QUOTED = re.compile(r'"[^"]*"')
_LINE_END = re.compile(r"[\r\n]")
LONGEST_CELL = 1 << 30  # characters
_MORE = "rows end in a separator that the header has not; see that their cells fit its names"
_HIDES_ROWS = "a cell in quotes holds lines that look like rows"
_CURE = (
    "fix it: a text with separators, quotes or line breaks stands in quotes, its own doubled, and "
    "nothing is above the header"
)


def table_rows(
    where: str,
    lines: Iterator[str],
    notes: Notes,
    needed: Collection[str] = (),
    longest: int = LONGEST_CELL,
) -> Iterator[tuple[int, dict[str, str | None]]]:
    """Yield the rows of a table that are not empty, each with the number of its first line.

    Args:
        where: the file, for messages.
        lines: its lines, with their line ends.
        notes: gets the rows that have fewer cells than the header, whose last cells become None,
            and those that repeat the header, which are left out.
        needed: names of columns, in small letters, that no row may lack.
        longest: characters of a cell, at most.

    Raises:
        UserError: a row has more cells than the header, or lacks a needed one; quotes are in the
            wrong place, or hold rows; a name is there twice. What follows would be misread.
    """
    csv.field_size_limit(longest)  # of the process, as csv has no other

    header, separator, lines_before = _find_header(lines)
    separators = header.count(separator)
    all_with_space = separators > 0 and header.count(f"{separator} ") == separators

    # The header is parsed too, as a name in quotes may hold line breaks.
    recorded = _Recorded(itertools.chain([header], lines))
    reader = csv.reader(
        recorded,
        delimiter=separator,
        skipinitialspace=all_with_space,
        strict=True,
    )
    width = 0  # cells of a row
    first_row = 0  # the line on which the first row begins
    begin = lines_before + 1  # line on which the row begins
    try:
        names = column_names(where, next(reader, []))
        begin = lines_before + reader.line_num + 1
        recorded.lines.clear()
        # A table in Markdown has borders, and spaces within them.
        is_markdown = separator == "|" and names[0] == names[-1] == ""
        for cells in reader:
            _check_quotes(recorded, cells, separator)
            place = f"line {begin}"
            if _may_hide_rows(recorded.lines, cells, separator):
                notes.add(_HIDES_ROWS, place)
            if is_markdown:
                cells = _markdown_cells(cells)
            if any(cells):
                first_row = first_row or begin
                width = width or _find_width(names, cells)
                if len(cells) == len(names) < width:
                    # The first row has a cell more, which is not the end of every row.
                    begin = first_row
                    raise csv.Error(f"{width} cells under {len(names)} names")
                if _repeats(names, cells):
                    notes.add("rows repeat the header and are left out", place)
                else:
                    _check_row(names, cells, width=width, needed=needed)
                    _note_width(names, cells, notes=notes, place=place)
                    named_cells = cells[: len(names)]
                    yield begin, dict(itertools.zip_longest(names, named_cells))
            begin = lines_before + reader.line_num + 1
            recorded.lines.clear()
    except csv.Error as error:
        raise UserError(f"line {begin}: {error}", key=where, cure=_CURE) from None


def _markdown_cells(cells: list[str]) -> list[str]:
    """Return the cells of a row without spaces around them; [] of the line below the header."""
    if all(map(_RULE.fullmatch, cells)):
        return []
    return [cell.strip() for cell in cells]


class _Recorded:
    """Lines that are kept as they are read, for a look at the row that they are."""

    def __init__(self, source: Iterator[str]) -> None:
        self.source = source
        self.lines: list[str] = []

    def __iter__(self) -> Iterator[str]:
        for line in self.source:
            self.lines.append(line)
            yield line


def _check_quotes(recorded: _Recorded, cells: list[str], separator: str) -> None:
    """Raise csv.Error if a quote inside a cell without quotes could hide separators, as in
    `5"a, b",c`: a separator is missing before it. Tabs are in no text.
    """
    # Most rows have no quote inside a cell.
    if separator == "\t" or not any('"' in cell for cell in cells):
        return

    # Separators outside of quotes must be those that csv saw.
    row = "".join(recorded.lines)
    outside_quotes = _QUOTED.sub("", row)
    all_closed = '"' not in outside_quotes
    if all_closed and outside_quotes.count(separator) != len(cells) - 1:
        raise csv.Error("a quote is inside a cell without quotes")


def _may_hide_rows(lines: list[str], cells: list[str], separator: str) -> bool:
    """Return whether the lines of a row may be two rows, which a quote at the start of a cell that
    is none of quoting made one. Raises csv.Error if they surely are more rows than one.
    """
    if len(lines) == 1:
        return False
    if separator == "\t":
        # Tabs are in no text.
        if any(separator in cell and _LINE_END.search(cell) for cell in cells):
            raise csv.Error(_HIDES_ROWS)
        return False

    # Each line has the separators of a row. A space follows those of prose.
    separators = len(cells) - 1
    if separators == 0:
        return False
    for line in lines:
        if line.count(separator) - line.count(f"{separator} ") != separators:
            return False
    if len(lines) > 2:
        raise csv.Error(_HIDES_ROWS)
    return True


def _find_header(lines: Iterator[str]) -> tuple[str, str, int]:
    """Return the line of the header, "" of an empty file, the separator, which a line for Excel may
    name, and how many lines are before it.
    """
    line, lines_before = _skip_blank(lines)
    excel = _EXCEL.fullmatch(line)
    if excel is None:
        # The header has no free text: its separator is the most frequent one outside of quotes.
        outside_quotes = _QUOTED.sub("", line)
        return line, max(_SEPARATORS, key=outside_quotes.count), lines_before
    line, blank_lines = _skip_blank(lines)
    return line, excel[1], lines_before + 1 + blank_lines


def _skip_blank(lines: Iterator[str]) -> tuple[str, int]:
    """Return the first line that is not blank, and how many are before it."""
    for number, line in enumerate(lines):
        if line.strip():
            return line, number
    return "", 0


def column_names(where: str, cells: list[str]) -> list[str]:
    """Return the names of the columns. Raises UserError if two are equal."""
    names = [cell.strip() for cell in cells]
    check_different(where, filter(None, names))
    return names


def check_different(where: str, names: Iterable[str]) -> None:
    """Raise UserError if two columns have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"two columns are named {name!r}", key=where, cure="rename one")


def _find_width(names: list[str], cells: list[str]) -> int:
    """Return how many cells the rows have by the first one: all may end in a separator."""
    has_one_more = len(cells) == len(names) + 1 and not cells[-1]
    if has_one_more and not _is_cut(cells) and not _ends_twice(cells):
        return len(names) + 1
    return len(names)


def _ends_twice(cells: list[str]) -> bool:
    """Return whether a row ends in an empty cell and one more separator, so that the last named
    column is empty with or without it.
    """
    return not any(cells[-2:]) and not _is_cut(cells)


def _is_cut(cells: list[str]) -> bool:
    """Return whether a cell begins with a space, as behind a comma of a text without quotes."""
    return any(cell.startswith(" ") for cell in cells)


def _note_width(names: list[str], cells: list[str], notes: Notes, place: str) -> None:
    if len(cells) > len(names):
        notes.add(_MORE, place)
    if len(cells) < len(names):
        notes.add("rows have fewer cells than the header", place)


def _repeats(names: list[str], cells: list[str]) -> bool:
    if cells[0].strip() != names[0]:  # as most rows
        return False
    return [cell.strip() for cell in cells] == names


def _check_row(names: list[str], cells: list[str], width: int, needed: Collection[str]) -> None:
    """Raise csv.Error if a row does not fit the header."""
    count = len(cells)

    # Cells without a name must be empty, but for a number of the row, as pandas and R write it.
    unnamed = [cell for cell, name in zip(cells, names, strict=False) if not name]
    if not names[0] and cells[0].isdecimal():
        unnamed = unnamed[1:]
    surplus = cells[len(names) :]

    one_more = count == len(names) + 1
    is_wider = count > width and not (one_more and _ends_twice(cells))
    if is_wider or any(surplus) or any(unnamed):
        named = [name for name in names if name]
        raise csv.Error(f"{count} cells under {len(named)} names")

    # Cells may be missing at the end, unless they are needed.
    for name in names[count:]:
        if name.lower() in needed:
            raise csv.Error(f"{count} cells under {len(names)} names, and none for {name!r}")
