"""Reports of tables, plots and notes: for a terminal, as Markdown, JSON, CSV, or one HTML page.

All forms are of the same tables, whose numbers are not rounded: only a form shows them as texts.
What a terminal and a spreadsheet would take for a command is escaped here, in one place.
"""

import json
import math
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml
from rich import box
from rich import table as rich_table
from rich.console import Console

from detalbert import files
from detalbert.errors import UserError
from detalbert.escapes import csv_cell, escape_controls
from detalbert.pages.template import fill_template

HERE = Path(__file__).parent
TABLES = yaml.safe_load((HERE / "tables.yaml").read_text(encoding="utf-8"))
METHOD = yaml.safe_load((HERE / "method.yaml").read_text(encoding="utf-8"))
ENDLESS = 100_000  # columns of what is no terminal: no line is folded


class Table(NamedTuple):
    """Numbers in a frame, and the formats of columns by head; others are text.

    `narrow` is what --wide changes, from head to a column, or to a cell's text: "{EM}\n{F1}".
    """

    title: str
    frame: pd.DataFrame
    formats: Mapping[str, str] = TABLES["formats"]
    narrow: Mapping[str, str] = {}
    long: bool = False  # on the page and in JSON only

    def shown(self) -> list[dict[str, str]]:
        """Return the rows with every cell as text; an unknown value is a dash."""
        texts = self.frame.astype(object)
        for head in texts:
            form = self.formats.get(head, "{}").format
            texts[head] = texts[head].map(form, na_action="ignore")
        return texts.fillna("-").to_dict("records")

    def narrowed(self) -> list[dict[str, str]]:
        """Return the rows without --wide: without the $ that a head has, and lines of dashes."""
        rows = []
        for row in self.shown():
            cells = {}
            for head, cell in self.narrow.items():
                # The name of a column, or a text with several of them.
                text = row.get(cell) or cell.format_map(row)
                if "$" in head:
                    text = text.replace("$", "")
                lines = [line for line in text.split("\n") if line.strip("- ")]
                cells[head] = "\n".join(lines) or "-"
            rows.append(cells)
        return rows


class Report(NamedTuple):
    """The result of one command."""

    title: str
    tables: list[Table]
    method: Sequence[str]
    notes: Sequence[str]
    bars: Sequence[tuple[str, Mapping[str, Any]]] = ()  # label, and dollars by purpose
    total: float | None = None  # dollars of all rows; None if a part has no price
    priced: float = 0.0  # dollars of what has a price


def write(
    report: Report,
    form: str = "",
    wide: bool = False,
    html: Path | None = None,
    budget: float = math.inf,
) -> int:
    """Write the page, then the report; return the exit status: 0, or 3 if over `budget`.

    `form` is json, markdown or csv; empty: for a terminal, with all columns if `wide`.
    """
    # Dollars of a part may be over a budget, but not within it.
    over = report.priced - budget
    is_part = report.total is None
    if is_part and over <= 0 and budget < math.inf:
        raise UserError(
            "not all of it has a price", key="--budget", cure="give --price-pool or @INSTANCE"
        )

    # The page first: a report that was printed has its page, too.
    if html is not None:
        page = fill_template(HERE / "page.html.j2", report=report)
        with files.writing(html, "give --html another file"), files.whole_file(html) as file:
            file.write(page)
    if form == "json":
        sys.stdout.write(to_json(report))
    elif form == "markdown":
        sys.stdout.write(fill_template(HERE / "report.md.j2", report=report))
    elif form == "csv":
        sys.stdout.write(to_csv(report.tables[0].frame))
    else:
        print_report(report, wide)

    # The report is printed in any case: it says what the money was for.
    if over <= 0:
        return 0
    rest = ", and not all of it has a price" if is_part else ""
    print(
        f"reports: ${report.priced:,.2f} is ${over:,.2f} over the budget of ${budget:,.2f}{rest}",
        file=sys.stderr,
    )
    return 3


def print_report(report: Report, wide: bool) -> None:
    """Print the report, all columns if `wide`; lines are folded on a terminal, unless `wide`."""
    width = None if sys.stdout.isatty() and not wide else ENDLESS
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    print(textwrap.fill(escape_controls(report.title), console.width))
    for table in report.tables:
        if table.long:
            continue
        grid = rich_table.Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            show_edge=False,
            pad_edge=False,
        )
        # Numbers are set to the right: those with a format, or in a narrow table all but names.
        if table.narrow and not wide:
            rows = table.narrowed()
            numbers = set(list(rows[0])[1:])
        else:
            rows = table.shown()
            numbers = {head for head in rows[0] if head in table.formats}
        for head in rows[0]:
            grid.add_column(
                escape_controls(head),
                justify="right" if head in numbers else "left",
                overflow="fold",
            )
        for row in rows:
            grid.add_row(*map(escape_controls, row.values()))
        print(f"\n{escape_controls(table.title)}\n")
        console.print(grid)
    print()
    for note in report.notes:
        print(f"note: {escape_controls(note)}")


def to_csv(frame: pd.DataFrame) -> str:
    """Return a table's unformatted values; no text of it is a formula for a spreadsheet."""
    texts = frame.map(lambda value: csv_cell(value) if isinstance(value, str) else value)
    return texts.rename(columns=csv_cell).to_csv(index=False)


def to_json(report: Report) -> str:
    """Return the unformatted numbers as JSON; null if one is unknown."""
    tables = []
    for table in report.tables:
        # Interface: "Runs, beside squad" is `runs`, what follows differs from report to report.
        title, *_ = re.split("[,:]", table.title)
        name = re.sub(r"\W+", "_", title.lower())
        values = table.frame.astype(object).where(table.frame.notna(), None)
        tables.append({"name": name, "title": table.title, "rows": values.to_dict("records")})
    content = {
        "title": report.title,
        "tables": tables,
        "total": report.total,
        "notes": report.notes,
        "method": report.method,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n"
