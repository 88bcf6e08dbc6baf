"""A report as one HTML file that needs nothing else: styles and plots are inside."""

import base64
from pathlib import Path

import jinja2

from detalbert import atomic
from detalbert.errors import UserError, first_line
from reports.tables import Report

_TEMPLATES = Path(__file__).parent


def to_html(report: Report) -> str:
    """The page; the same bytes for the same report."""
    loader = jinja2.FileSystemLoader(_TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    plots = [
        {"name": plot.name, "caption": plot.caption,
         "data": base64.b64encode(plot.svg.encode()).decode()}
        for plot in report.plots
    ]  # fmt: skip
    return environment.get_template("page.html.j2").render(report=report, plots=plots)


def write_whole(path: Path, text: str) -> None:
    """`text` at `path`, complete or not at all. Raises UserError when it cannot be written."""
    try:
        with atomic.whole_file(path) as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"--html {path}: cannot write there ({first_line(error)})") from None
