"""Reports of tables, plots and notes: for a terminal, as Markdown, JSON, CSV, or one HTML page."""

import argparse
import json
import math
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import tabulate
import yaml
from markupsafe import Markup

from cluster.page import fill_template
from cluster.prices import Price
from detalbert import atomic
from detalbert.errors import UserError

HERE = Path(__file__).parent
COLUMNS = yaml.safe_load((HERE / "columns.yaml").read_text(encoding="utf-8"))
tabulate.MIN_PADDING = 0  # a head is no wider than its words
NAME = 18  # characters of a first column, on a terminal that has no more; it is folded there


class Plot(NamedTuple):
    """An SVG drawing and the sentence under it."""

    name: str
    svg: Markup
    caption: str


class Table(NamedTuple):
    """Numbers in a frame, and the format of each column; a column without a format is text.

    `narrow` is for output without --wide, from head to the columns in it: "{cost} {EM}/{F1}".
    """

    title: str
    frame: pd.DataFrame
    formats: Mapping[str, str] = {}
    long: bool = False  # on the page and in JSON only
    narrow: Mapping[str, str] = {}

    def shown(self) -> pd.DataFrame:
        """Return every cell as text; an unknown value is a dash."""
        styles = {name: self.formats.get(name, "{}") for name in self.frame}
        columns = {n: [_cell(value, s) for value in self.frame[n]] for n, s in styles.items()}
        return pd.DataFrame(columns, dtype=object)

    def text(self, form: str, wide: bool = True, room: float = math.inf) -> str:
        """Format with `tabulate`; omit right columns until it fits in `room` characters."""
        shown, short = self.shown(), self.narrow and not wide
        if form == "pipe":
            shown = shown.replace(r"\|", r"\\|", regex=True)
        if short:
            rows, heads = shown.to_dict("records"), dict(self.narrow)
            heads = {h: t for h, t in heads.items() if {*re.findall("{(.+?)}", t)} <= {*shown}}
            cells = {h: [_short(t.format_map(r), h) for r in rows] for h, t in heads.items()}
            shown = pd.DataFrame(cells)
        words = shown.columns[:1] if short else [n for n in shown if n not in self.formats]
        sides = ["left" if name in words else "right" for name in shown]
        for count in range(len(sides), 0, -1):
            folded = [NAME if room < math.inf else None] + [None] * (count - 1)
            look: Any = {"tablefmt": form, "disable_numparse": True, "colalign": sides[:count]}
            lines = shown.iloc[:, :count].to_markdown(index=False, maxcolwidths=folded, **look)
            if max(map(len, lines.split("\n"))) <= room:
                break
        more = len(sides) - count
        return lines + (f"\n({more} columns more: --wide)" if more else "")


def _cell(value: Any, style: str) -> str:
    if pd.isna(value):
        return "-"
    return "never" if value == math.inf else style.format(value)


def _short(text: str, head: str) -> str:
    """Return `text` without a $ that the head has, and without lines that contain only dashes."""
    text = text.replace("$", "") if "$" in head else text
    return "\n".join(line for line in text.split("\n") if line.strip("- /()x%$")) or "-"


class Report(NamedTuple):
    """The result of one command."""

    title: str
    tables: list[Table]
    method: Sequence[str]
    notes: Sequence[str]
    plots: Sequence[Plot]
    total: float | None = None  # dollars, what --budget is compared with


def write(report: Report, args: argparse.Namespace) -> int:
    """Write the page, then the report; return the exit status: 0, or 3 if over --budget."""
    if args.budget is not None and report.total is None:
        raise UserError("--budget: not all of it has a price; give --price-pool or @INSTANCE")
    if args.html is not None:
        page = fill_template(HERE / "page.html.j2", report=report)
        cure = "give --html another file"
        with atomic.writing(args.html, cure), atomic.whole_file(args.html) as file:
            file.write(page)
    if args.json:
        sys.stdout.write(to_json(report))
    elif args.markdown:
        sys.stdout.write(fill_template(HERE / "report.md.j2", report=report))
    elif args.csv:
        sys.stdout.write(report.tables[0].frame.to_csv(index=False))
    else:
        sys.stdout.write(to_terminal(report, args.wide))
    if args.budget is None or (over := (report.total or 0.0) - args.budget) <= 0:
        return 0
    total, budget = f"${report.total:,.2f}", f"${args.budget:,.2f}"
    print(f"reports: {total} is ${over:,.2f} over the budget of {budget}", file=sys.stderr)
    return 3


def to_terminal(report: Report, wide: bool) -> str:
    """Return the report, no wider than the terminal unless `wide` or stdout is not a terminal."""
    narrow = sys.stdout.isatty() and not wide
    room = shutil.get_terminal_size().columns if narrow else math.inf
    tables = [f"{t.title}\n\n{t.text('simple', wide, room)}" for t in report.tables if not t.long]
    notes = "\n".join(f"note: {note}" for note in report.notes)
    parts = [report.title, *tables, notes]
    return "\n\n".join(filter(None, parts)) + "\n"


def to_json(report: Report) -> str:
    """Return the unformatted numbers as JSON; null if one is unknown or infinite."""
    tables = []
    for table in report.tables:
        name = re.sub(r"\W+", "_", re.split("[,:]", table.title)[0].lower())
        rows = [{k: _plain(v) for k, v in row.items()} for row in table.frame.to_dict("records")]
        tables.append({"name": name, "title": table.title, "rows": rows})
    content: Any = {"title": report.title, "tables": tables, "total": report.total}
    content |= {"notes": report.notes, "method": report.method}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def price_table(prices: Sequence[Price]) -> Table:
    """Return all prices that a report used, with origin, day and source."""
    found = frame(sorted(map(vars, prices), key=lambda row: row["instance"]))
    for name in ("date", "retired"):
        found[name] = found[name].map(lambda day: day and str(day))
    found.columns = [name.replace("_", " ") for name in found]
    names = [name for name in found if name not in ("instance", "spot discount", "source")]
    return Table(
        "Prices", found[["instance", *names, "source"]], COLUMNS["prices"]["formats"], True
    )


def frame(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows as a frame in which whole numbers stay integers even if a value is missing."""
    return pd.DataFrame(rows, dtype=object)
