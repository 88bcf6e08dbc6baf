"""Pages from templates, all with the style sheet page.css.

A page holds its style and its plots itself, so that one file can be sent and opened anywhere.
"""

from pathlib import Path

import jinja2

HERE = Path(__file__).parent


def fill_template(template: Path, **values: object) -> str:
    """Return a page without external references, or Markdown; the page's values are escaped."""
    # Markdown has no HTML to escape; a name that a template misspells is an error, not "".
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, HERE]),
        autoescape=template.name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template.name).render(**values)
