"""Pages from templates, all with the style sheet page.css."""

from pathlib import Path
from typing import Any

import jinja2

HERE = Path(__file__).parent


def fill_template(template: Path, **values: Any) -> str:
    """Return a page without external references, or Markdown; the page's values are escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, HERE]),
        autoescape=template.name.endswith(".html.j2"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(template.name).render(**values)
