"""A report: tables, plots and words; printed to a terminal, as Markdown or as JSON."""

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import pandas as pd
import tabulate

from reports.prices import Price

tabulate.MIN_PADDING = 0  # a head is no wider than its words
DASH = "-"
NAME = 18  # characters of a first column, on a terminal that has no more; it is folded there


@dataclass(frozen=True)
class Plot:
    """An SVG drawing and the sentence under it."""

    name: str
    svg: str
    caption: str


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers in a frame, and how each column is shown; a column without a format is text.

    `narrow`: what is printed without --wide, head -> the columns in it: "{cost} {EM}/{F1}".
    """

    title: str
    frame: pd.DataFrame
    formats: Mapping[str, str] = field(default_factory=dict)
    long: bool = False  # on the page and in JSON only
    narrow: Mapping[str, str] = field(default_factory=dict)

    def shown(self) -> pd.DataFrame:
        """Every cell as text; what is not known as a dash."""
        columns = {
            name: [_cell(value, self.formats.get(name, "{}")) for value in self.frame[name]]
            for name in self.frame.columns
        }
        return pd.DataFrame(columns, columns=self.frame.columns, dtype=object)

    def short(self) -> pd.DataFrame:
        """The columns of `narrow`: no $ where the head has it, no line that has but dashes."""
        rows = self.shown().to_dict("records")
        cells = {
            head: [_lines(text.format_map(row), "$" in head) or DASH for row in rows]
            for head, text in self.narrow.items()
        }
        return pd.DataFrame(cells, dtype=object) if self.narrow else self.shown()

    def drawn(self, shown: pd.DataFrame, form: str, room: float = math.inf) -> str:
        """As `tabulate` draws it; columns on the right are left out until it fits in `room`."""
        for count in range(len(shown.columns), 0, -1):
            part = shown.iloc[:, :count]
            text = [bool(not i if self.narrow else n not in self.formats)
                    for i, n in enumerate(part)]  # fmt: skip
            folded = [NAME if room < math.inf and not i else None for i in range(count)]
            lines = part.to_markdown(
                index=False, tablefmt=form, disable_numparse=True, maxcolwidths=folded,
                colalign=["left" if left else "right" for left in text],
            )  # fmt: skip
            if max(map(len, lines.split("\n"))) <= room or count == 1:
                break
        more = len(shown.columns) - count
        return lines + (f"\n({more} columns more: --wide)" if more else "")


def _lines(text: str, unit: bool) -> str:
    text = text.replace("$", "") if unit else text
    return "\n".join(line for line in text.split("\n") if line.strip("- /()x%$"))


@dataclass(frozen=True, eq=False)
class Report:
    """What one command found."""

    title: str
    tables: list[Table]
    method: list[str]
    notes: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    snippet: str = ""  # what to write into the YAML
    total: float | None = None  # dollars, what --budget is held against

    def short_tables(self) -> list[Table]:
        """Those that are printed."""
        return [table for table in self.tables if not table.long]


def _cell(value: Any, style: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    return "never" if isinstance(value, float) and math.isinf(value) else style.format(value)


def to_terminal(report: Report, file: TextIO, wide: bool) -> None:
    """No wider than the terminal unless `wide`; where `file` is none, lines are not cut."""
    room = math.inf if wide or not file.isatty() else shutil.get_terminal_size().columns
    parts = [report.title]
    for table in report.short_tables():
        shown = table.shown() if wide else table.short()
        parts.append(f"{table.title}\n\n{table.drawn(shown, 'simple', room)}")
    parts += [report.snippet] if report.snippet else []
    parts.append("\n".join(f"note: {note}" for note in report.notes))
    file.write("\n\n".join(parts).rstrip() + "\n")


def to_markdown(report: Report) -> str:
    """Every table that is not long, the method and the notes."""
    parts = [f"# {report.title}"]
    for table in report.short_tables():
        shown = table.shown().replace(r"\|", r"\\|", regex=True)
        parts += [f"## {table.title}", table.drawn(shown, "pipe")]
    parts += [f"```yaml\n{report.snippet}\n```"] if report.snippet else []
    for head, lines in (("Method", report.method), ("Notes", report.notes)):
        parts += [f"## {head}", "\n".join(f"- {line}" for line in lines)] if lines else []
    return "\n\n".join(parts) + "\n"


def to_json(report: Report) -> str:
    """The numbers as they are, not as they are shown; null where one is not known or infinite."""
    tables = [
        {"name": re.sub(r"\W+", "_", re.split("[,:]", table.title)[0].lower()),
         "title": table.title,
         "rows": [{name: _plain(value) for name, value in row.items()}
                  for row in table.frame.to_dict("records")]}
        for table in report.tables
    ]  # fmt: skip
    content = {"title": report.title, "tables": tables, "yaml": report.snippet or None}
    content |= {"total": report.total, "notes": report.notes, "method": report.method}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def price_table(prices: Sequence[Price]) -> Table:
    """Every price a report used, with its origin, day and source."""
    columns = {
        "instance": "instance", "slots": "slots", "GPU": "gpu", "on demand": "on_demand",
        "from": "on_demand_origin", "spot": "spot", "lowest": "spot_low", "highest": "spot_high",
        "spot from": "spot_origin", "retired": "retired", "region": "region", "date": "date",
        "source": "source",
    }  # fmt: skip
    rows = [{head: getattr(p, name) for head, name in columns.items()} for p in prices]
    for row in rows:
        row |= {key: row[key] and str(row[key]) for key in ("retired", "date")}
    money = dict.fromkeys(("on demand", "spot", "lowest", "highest"), "${:,.4f}")
    rows.sort(key=lambda row: row["instance"])
    return Table("Prices", frame(rows), {"slots": "{}", **money}, True)


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a frame that keeps whole numbers whole where a value is missing."""
    return pd.DataFrame(rows, dtype=object)
