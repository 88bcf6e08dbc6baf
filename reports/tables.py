"""A report: tables, plots and words; printed to a terminal, as Markdown or as JSON."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from reports.prices import Price

DASH = "-"


@dataclass(frozen=True)
class Plot:
    """An SVG drawing and the sentence under it."""

    name: str
    svg: str
    caption: str


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers in a frame, and how each column is shown; a column without a format is text."""

    title: str
    frame: pd.DataFrame
    formats: dict[str, str] = field(default_factory=dict)
    long: bool = False  # on the page and in JSON only

    def shown(self) -> pd.DataFrame:
        """Every cell as text; what is not known as a dash."""
        columns = {
            name: [_cell(value, self.formats.get(name, "{}")) for value in self.frame[name]]
            for name in self.frame.columns
        }
        return pd.DataFrame(columns, columns=self.frame.columns)

    def plain(self) -> list[dict[str, Any]]:
        """The rows as JSON takes them."""
        rows = self.frame.to_dict("records")
        return [{name: _plain(value) for name, value in row.items()} for row in rows]


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


def to_terminal(report: Report, file: TextIO) -> None:
    """As wide as its widest line where `file` is not a terminal, so that nothing is cut."""
    console = Console(file=file, highlight=False, width=None if file.isatty() else 240)
    console.print(report.title, style="bold")
    for table in report.short_tables():
        drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
        shown = table.shown()
        for name in shown.columns:
            drawn.add_column(str(name), justify="right" if name in table.formats else "left")
        for row in shown.itertuples(index=False):
            drawn.add_row(*row)
        console.print(drawn)
    if report.snippet:
        console.print(report.snippet, markup=False)
    for note in report.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)


def to_markdown(report: Report) -> str:
    """Every table that is not long, the method and the notes."""
    lines = [f"# {report.title}"]
    for table in report.short_tables():
        shown = table.shown()
        lines += ["", f"## {table.title}", ""]
        lines.append(_row(shown.columns))
        lines.append(_row("---:" if name in table.formats else "---" for name in shown.columns))
        lines += [_row(row) for row in shown.itertuples(index=False)]
    if report.snippet:
        lines += ["", "```yaml", report.snippet, "```"]
    lines += ["", "## Method", "", *(f"- {line}" for line in report.method)]
    if report.notes:
        lines += ["", "## Notes", "", *(f"- {line}" for line in report.notes)]
    return "\n".join(lines) + "\n"


def _row(cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def to_json(report: Report) -> str:
    """The numbers as they are, not as they are shown; null where one is not known or infinite."""
    tables = [{"title": table.title, "rows": table.plain()} for table in report.tables]
    content = {"title": report.title, "tables": tables, "yaml": report.snippet or None}
    content |= {"notes": report.notes, "method": report.method}
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
            "spot from": price.spot_origin,
            "reclaimed a month": price.interruption,
            "region": price.region,
            "date": str(price.date),
            "source": price.source,
        }
        for price in sorted(prices, key=lambda price: price.instance)
    ]
    money = "${:,.4f}"
    return Table("Prices", frame(rows), {"slots": "{}", "on demand": money, "spot": money}, True)


def frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame that keeps whole numbers whole where a value is missing."""
    return pd.DataFrame(rows, dtype=object)
