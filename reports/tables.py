"""A report: tables, plots and words; printed to a terminal, as Markdown, CSV or JSON."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from reports.prices import Price

DASH = "-"
NAME = 18  # columns that the first column of a table keeps; it is folded, others are left out


@dataclass(frozen=True)
class Plot:
    """An SVG drawing and the sentence under it."""

    name: str
    svg: str
    caption: str


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers in a frame, and how each column is shown; a column without a format is text.

    `narrow`: what a terminal shows without --wide, head -> the columns in it: "{cost} {EM}/{F1}".
    """

    title: str
    frame: pd.DataFrame
    formats: Mapping[str, str] = field(default_factory=dict)
    long: bool = False  # on the page and in JSON only
    narrow: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For JSON: the title's first words."""
        return re.sub(r"\W+", "_", self.title.partition(",")[0].partition(":")[0].lower())

    def shown(self) -> pd.DataFrame:
        """Every cell as text; what is not known as a dash."""
        columns = {
            name: [_cell(value, self.formats.get(name, "{}")) for value in self.frame[name]]
            for name in self.frame.columns
        }
        return pd.DataFrame(columns, columns=self.frame.columns)

    def short(self) -> pd.DataFrame:
        """The columns of `narrow`; a line of a cell that has nothing but dashes is left out."""
        rows = self.shown().to_dict("records")
        cells = {
            head: ["\n".join(_lines(text.format_map(row))) or DASH for row in rows]
            for head, text in self.narrow.items()
        }
        return pd.DataFrame(cells) if self.narrow else self.shown()


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.strip("- /()x%")]


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
    if isinstance(value, float) and math.isinf(value):
        return "never"
    return style.format(value)


def to_terminal(report: Report, file: TextIO, wide: bool) -> None:
    """No wider than the terminal unless `wide`; where `file` is none, lines are not cut."""
    console = Console(file=file, highlight=False, width=None if file.isatty() else 100_000)
    room = math.inf if wide or not file.isatty() else console.width
    if wide:
        console.width = 100_000
    console.print(report.title, style="bold")
    for table in report.short_tables():
        shown, left_out = _fitting(table.shown() if wide else table.short(), room)
        console.print(f"\n{table.title}", markup=False)
        drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for index, name in enumerate(shown.columns):
            number = name in table.formats or (name in table.narrow and index)
            drawn.add_column(str(name), justify="right" if number else "left", overflow="fold")
        for row in shown.itertuples(index=False):
            drawn.add_row(*row)
        console.print(drawn)
        if left_out:
            console.print(f"({left_out} columns more: --wide)")
    if report.snippet:
        console.print(f"\n{report.snippet}", markup=False)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def _fitting(shown: pd.DataFrame, room: float) -> tuple[pd.DataFrame, int]:
    """As many columns from the left as `room` has, and how many are left out."""
    used = 0.0
    for index, name in enumerate(shown.columns):
        texts = [line for text in (name, *shown[name]) for line in str(text).split("\n")]
        width = max(len(text) for text in texts) + 1
        used += min(width, NAME + 1) if index == 0 else width
        if index and used > room:
            return shown.iloc[:, :index], len(shown.columns) - index
    return shown, 0


def to_markdown(report: Report) -> str:
    """Every table that is not long, the method and the notes."""
    lines = [f"# {report.title}"]
    for table in report.short_tables():
        shown = table.shown().replace(r"\|", r"\\|", regex=True)
        sides = ["right" if name in table.formats else "left" for name in shown.columns]
        drawn = shown.to_markdown(index=False, colalign=sides, disable_numparse=True)
        lines += ["", f"## {table.title}", "", drawn]
    if report.snippet:
        lines += ["", "```yaml", report.snippet, "```"]
    lines += ["", "## Method", "", *(f"- {line}" for line in report.method)]
    if report.notes:
        lines += ["", "## Notes", "", *(f"- {line}" for line in report.notes)]
    return "\n".join(lines) + "\n"


def to_json(report: Report) -> str:
    """The numbers as they are, not as they are shown; null where one is not known or infinite."""
    tables = [
        {"name": table.name, "title": table.title, "rows": [
            {name: _plain(value) for name, value in row.items()}
            for row in table.frame.to_dict("records")
        ]}
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
    rows = [
        {
            "instance": price.instance,
            "slots": price.slots,
            "GPU": price.gpu,
            "on demand": price.on_demand,
            "from": price.on_demand_origin,
            "spot": price.spot,
            "lowest": price.spot_low,
            "highest": price.spot_high,
            "spot from": price.spot_origin,
            "retired": str(price.retired) if price.retired else None,
            "region": price.region,
            "date": str(price.date),
            "source": price.source,
        }
        for price in sorted(prices, key=lambda price: price.instance)
    ]
    money = dict.fromkeys(("on demand", "spot", "lowest", "highest"), "${:,.4f}")
    return Table("Prices", frame(rows), {"slots": "{}", **money}, True)


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a frame that keeps whole numbers whole where a value is missing."""
    return pd.DataFrame(rows, dtype=object)
