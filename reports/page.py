"""A report as one HTML file that needs nothing else: styles and plots are inside."""

import base64
from pathlib import Path

import jinja2

from detalbert import atomic
from detalbert.errors import UserError, first_line
from reports.tables import Report


def to_html(report: Report) -> str:
    """The page; the same bytes for the same report."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    environment.filters["base64"] = lambda text: base64.b64encode(text.encode()).decode()
    return environment.get_template("page.html.j2").render(report=report)


def write_whole(path: Path, text: str) -> None:
    """`text` at `path`, complete or not at all. Raises UserError when it cannot be written."""
    try:
        with atomic.whole_file(path) as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"--html {path}: cannot write there ({first_line(error)})") from None
