"""Plots as inline SVG, in the colours of the page that holds them, light or dark.

matplotlib draws with colours that stand for those of the style sheet (page.css), and these are
replaced in the text: a plot is a part of the page, and needs no file of its own.
"""

import io
import re
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("page.mplstyle")
# Colours of a figure, which become those of the page.
TEXT = "#000000"
LINE = "#d9d9d9"
OTHER = "#9aa1a9"
FIRST = "#0b5cad"
SECOND = "#b34700"
_COLOURS = {
    TEXT: "currentColor",
    LINE: "var(--line)",
    OTHER: "var(--other)",
    FIRST: "var(--first)",
    SECOND: "var(--second)",
    "#ffffff": "var(--page)",
}


def inline_svg(figure: Figure, label: str) -> Markup:
    """Return a figure as SVG in the page's colours, its text as text.

    Args:
        figure: made under `STYLE`.
        label: what it shows, for a screen reader.
    """
    buffer = io.StringIO()
    # Without metadata, whose date would make two pages of the same numbers differ.
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", metadata=nothing)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg)  # HTML knows them
    svg = svg.replace("xlink:href", "href")
    for colour, name in _COLOURS.items():
        svg = svg.replace(colour, name)
    svg = svg.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return Markup(svg)
