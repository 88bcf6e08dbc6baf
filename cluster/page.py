"""The look that all pages share: templates, style sheet, and plots as inline SVG."""

import io
import re
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

HERE = Path(__file__).parent
STYLE = HERE / "page.mplstyle"
# Colours of a figure, which become those of the page (page.css), light or dark.
TEXT, LINE, PAGE = "#000000", "#d9d9d9", "#ffffff"
OTHER, SPOT, DEMAND = "#9aa1a9", "#0b5cad", "#b34700"
_COLOURS = {
    TEXT: "currentColor", LINE: "var(--line)", OTHER: "var(--other)", SPOT: "var(--spot)",
    DEMAND: "var(--demand)", PAGE: "var(--page)",
}  # fmt: skip


def fill_template(template: Path, **values: Any) -> str:
    """Return a page without external references, or Markdown; the page's values are escaped."""
    look: Any = {"trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    look["loader"] = jinja2.FileSystemLoader([template.parent, HERE])
    look["autoescape"] = template.name.endswith(".html.j2")
    return jinja2.Environment(**look).get_template(template.name).render(**values)


def inline_svg(figure: Any, label: str) -> Markup:
    """Return a matplotlib figure drawn in STYLE as SVG in the page's colours, read as `label`."""
    import matplotlib

    text = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(text, format="svg", metadata=nothing)
    svg = text.getvalue()
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg[svg.index("<svg") :])  # HTML knows them
    svg = svg.replace("xlink:href", "href")
    for colour, name in _COLOURS.items():
        svg = svg.replace(colour, name)
    return Markup(svg.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1))
