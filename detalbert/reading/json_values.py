"""The rows of a JSON file: a list, `data` of a mapping, rows one after another, a page of the hub's
rows, or what pandas writes: `split`, `index`, its default, `columns`, and `list` of `to_dict`. The
labels of a frame's rows are in them under LABEL, if they are more than numbers of rows.

The file is in memory as a whole, as Python's parser takes complete texts; JSON lines are not.
"""

import contextlib
import gc
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from detalbert.errors import UserError
from detalbert.reading.packing import Decoder
from detalbert.reading.tables import check_different

LABEL = "index of pandas"  # a name that no column has
# What JSON takes for white space; str.isspace takes more.
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def json_rows(where: str, blocks: Iterable[bytes], names: Collection[str] = ()) -> Iterator[object]:
    """Yield the rows of a JSON file.

    Args:
        where: the file, for messages.
        blocks: its content in UTF-8.
        names: of columns that rows may have, in small letters: by them a frame is known.

    Raises:
        UserError: it is not JSON, with the line; or two columns have one name.
    """
    text = Decoder(where)(b"".join(blocks), last=True)
    for value in _values(where, text):
        if isinstance(value, list):
            yield from value
        else:
            yield from _mapping_rows(where, value, names)


def _values(where: str, text: str) -> Iterator[list[object] | dict[str, object]]:
    """Yield the lists and mappings of a text, one after another."""
    at = _skip_space(text, 0)
    while at < len(text):
        try:
            # The collector would walk all that is parsed again and again: a sixth of the time.
            with collector_paused():
                value, end = _DECODER.raw_decode(text, idx=at)
            if not isinstance(value, (dict, list)):
                raise ValueError("expecting a mapping or a list")
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            place = getattr(error, "pos", at)
            line = 1 + text.count("\n", 0, place)
            raise UserError(
                f"line {line} is not JSON ({reason})",
                key=where,
                cure="correct it",
            ) from None
        yield value
        at = _skip_space(text, end)


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Pause Python's garbage collector, which would look for cycles in all rows again and again; a
    tree of JSON has none.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _skip_space(text: str, begin: int) -> int:
    space = _SPACE.match(text, begin)
    assert space is not None  # it matches nothing, too
    return space.end()


def _mapping_rows(
    where: str, mapping: dict[str, object], names: Collection[str]
) -> Iterable[object]:
    """Return the elements of the list `data` of a mapping, which are articles in SQuAD's shape;
    without one, the rows of a page or a frame, or the mapping as the only row.
    """
    data = mapping.get("data")
    is_row = any(name.lower() in names for name in mapping if name != "data")
    if isinstance(data, list) and not is_row:
        columns = mapping.get("columns")
        if not isinstance(columns, list):
            return data
        index = mapping.get("index")
        return _split_rows(where, columns, data=data, index=index)
    if _is_page(mapping) and not is_row:
        return _page_rows(where, mapping["rows"])
    if is_frame(mapping):
        return frame_rows(mapping, names)
    return [mapping]


def holds_rows(mapping: Mapping[str, Any]) -> bool:
    """Return whether a mapping may hold rows, and not be one."""
    return _has_data(mapping) or _is_page(mapping) or is_frame(mapping)


def _has_data(mapping: Mapping[str, Any]) -> bool:
    """Return whether the list `data` of a mapping has rows: mappings, or the cells of `columns`."""
    data = mapping.get("data")
    if not isinstance(data, list):
        return False
    return not data or isinstance(data[0], dict) or isinstance(mapping.get("columns"), list)


def _is_page(mapping: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a page of the hub's rows: {"rows": [{"row": {...}}]}."""
    rows = mapping.get("rows")
    if not isinstance(rows, list) or not rows:
        return False
    return all(isinstance(row, dict) and isinstance(row.get("row"), dict) for row in rows)


def _page_rows(where: str, rows: Any) -> Iterator[object]:
    for number, row in enumerate(rows, start=1):
        if row.get("truncated_cells"):
            raise UserError(
                f"row {number}: the hub has cut {row['truncated_cells']!r:.60}",
                key=where,
                cure="name the data set in place of the file",
            )
        yield row["row"]


def _split_rows(
    where: str, columns: list[object], data: list[object], index: object
) -> Iterator[object]:
    """Yield the rows of pandas' `split`, which are lists of cells, by the names of its columns."""
    names = list(map(str, columns))
    for row, label in itertools.zip_longest(data, _labels(index)):
        if isinstance(row, list) and len(row) == len(names):
            cells = dict(zip(names, row, strict=True))
            if len(cells) < len(names):
                check_different(where, names)
            yield _labelled(cells, label)
        else:
            yield row


def is_frame(mapping: Mapping[str, Any]) -> bool:
    """Return whether a mapping is a frame of pandas, by columns or by index: mappings of equal keys
    in equal order, or lists of one length.
    """
    parts = list(mapping.values())
    if not parts:
        return False
    if all(isinstance(part, list) for part in parts):
        return len(set(map(len, parts))) == 1
    if not all(isinstance(part, dict) for part in parts):
        return False
    keys = list(parts[0])
    return all(list(part) == keys for part in parts)


def frame_rows(frame: Mapping[str, Any], names: Collection[str]) -> list[object]:
    """Return the rows of a frame of pandas; if no column has one of `names`, in small letters, the
    frame itself as the only row.
    """
    # {"0": {"question": ...}, "1": ...}
    rows = list(frame.values())
    labels = list(frame)
    are_columns = any(name.lower() in names for name in frame)
    if isinstance(rows[0], list):  # {"question": [...], ...}
        cells = zip(*rows, strict=True)
        return [dict(zip(frame, row, strict=True)) for row in cells] if are_columns else [frame]
    if are_columns:  # {"question": {"0": ..., "1": ...}, ...}
        labels = list(rows[0])
        # A single column has numbers for labels: else it may be a text in several languages.
        if len(frame) == 1 and not all(map(str.isdecimal, labels)):
            return [frame]
        rows = []
        for label in labels:
            row = {name: column[label] for name, column in frame.items()}
            rows.append(row)
    elif not any(name.lower() in names for name in rows[0]):
        return [frame]
    pairs = itertools.zip_longest(rows, _labels(labels))
    return [_labelled(row, label) for row, label in pairs]


def _labelled(row: dict[str, object], label: str | None) -> dict[str, object]:
    if label is None:
        return row
    return {LABEL: label, **row}


def _labels(index: object) -> list[str]:
    """Return the labels of a frame's rows; [] if they only count the rows, as pandas does by
    itself, or are numbers that repeat, as of frames that were put together.
    """
    if not isinstance(index, list):
        return []
    labels = list(map(str, index))
    row_numbers = list(map(str, range(len(labels))))
    if labels == row_numbers:
        return []
    are_texts = all(isinstance(label, str) for label in index)
    is_unique = len(set(labels)) == len(labels)
    return labels if are_texts or is_unique else []
