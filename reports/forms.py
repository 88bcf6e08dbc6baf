"""A report is rows, with a column for each key, and notes. Its forms: a table for a terminal, CSV,
JSON and a page of HTML.

CSV and JSON have plain numbers, which a program can add up; only a table and a page format them,
and leave out columns without any value. What a terminal or a spreadsheet would take for a command
is escaped here.
"""

import argparse
import csv
import html
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from rich import box
from rich.console import Console
from rich.table import Table

from detalbert.escapes import csv_cell, escape_controls
from detalbert.files import whole_file, writing

Row: TypeAlias = dict[str, Any]

# By column; of others an integer has no decimals, and another number six digits.
FORMATS = {
    **dict.fromkeys(["dollars", "on demand"], "${:,.2f}"),
    **dict.fromkeys(["hours", "start-up", "work", "lost", "idle", "unpriced"], "{:,.2f}"),
    **dict.fromkeys(["exact", "f1", "windows/s", "seconds"], "{:,.2f}"),
    "windows": "{:,.0f}",
    "$/1,000 windows": "${:,.4f}",
    "speed-up": "{:.2f}x",
    "faster": "{:.1f}x",
    "cheaper": "{:.0%}",
    "efficiency": "{:.1%}",
}
# Columns of what is no terminal: no line is folded.
ENDLESS = 100_000
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="generator" content="detalbert">
<title>{title}</title><style>
body {{ font: 15px/1.5 sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse }} th, td {{ padding: .3em .7em; border-bottom: 1px solid #ddd }}
th, td:first-child {{ text-align: left }} td {{ text-align: right; white-space: nowrap }}
</style></head><body><h1>{title}</h1>
{table}
{notes}
</body></html>
"""


def write(
    args: argparse.Namespace,
    title: str,
    rows: Sequence[Row],
    notes: Sequence[str],
) -> None:
    """Write the page of `args.html`, if there is one, then print the report as `args.form`: json,
    csv, or a table if it is empty.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    shown = [column for column in columns if any(row.get(column) for row in rows)]
    cells = [{column: _text(column, row.get(column)) for column in shown} for row in rows]
    if args.html is not None:
        with writing(args.html, "give --html another file"), whole_file(args.html) as temporary:
            temporary.write_text(_page(title, cells, notes), encoding="utf-8")
    if args.form == "json":
        content = {"title": title, "rows": rows, "notes": notes}
        print(json.dumps(content, indent=1, default=str))
    elif args.form == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        for row in [dict(zip(columns, columns, strict=True)), *rows]:
            writer.writerow(
                csv_cell(escape_controls(value)) if isinstance(value, str) else value
                for value in map(row.get, columns)
            )
    else:
        texts = {column for row in rows for column in row if isinstance(row[column], str)}
        _print_table(title, cells, notes, texts)


def _text(column: str, value: object) -> str:
    """Return a cell as text; nothing is a dash."""
    if value is None:
        return "-"
    usual = "{:,.6g}" if isinstance(value, float) else "{}"
    return FORMATS.get(column, usual).format(value)


def _print_table(
    title: str,
    cells: Sequence[Mapping[str, str]],
    notes: Sequence[str],
    texts: Collection[str],
) -> None:
    """Print a report; `texts` are columns set to the left. Only a terminal folds its lines."""
    width = None if sys.stdout.isatty() else ENDLESS
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in cells[0]:
        justify = "left" if column in texts else "right"
        table.add_column(escape_controls(column), justify=justify, overflow="fold")
    for row in cells:
        table.add_row(*map(escape_controls, row.values()))
    print(escape_controls(title) + "\n")
    console.print(table)
    for note in notes:
        print(f"note: {escape_controls(note)}")


def _page(
    title: str,
    cells: Sequence[Mapping[str, str]],
    notes: Sequence[str],
) -> str:
    """Return a page of HTML without external references."""
    import pandas as pd  # a second of CPU: a table on a terminal does without

    return PAGE.format(
        title=html.escape(title),
        table=pd.DataFrame(cells).to_html(index=False, border=0),
        notes="\n".join(f"<p>{html.escape(note)}</p>" for note in notes),
    )
