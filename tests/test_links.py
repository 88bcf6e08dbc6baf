"""Every relative link of a page leads to a file that is there, and to a heading of it.

python -m tests.test_links    # what is wrong, a line each; exit status 1 if anything is
"""

import re
import sys
from pathlib import Path

from tests.pages import ROOT, pages


def text_of(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The fragments that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ +(.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        there = target.exists() and (not anchor or anchor in anchors(target))
        if not there and not re.match(r"\w+:", link):
            found.append(f"{page}: {link}")
    return found


def all_broken() -> list[str]:
    return [fault for page in pages() for fault in broken(ROOT / page)]


def test_every_link_leads_somewhere():
    assert all_broken() == []


def test_the_layout_names_modules_that_exist():
    text = "".join((ROOT / "docs" / f"layout.{kind}").read_text() for kind in ("md", "svg"))
    places = [ROOT, ROOT / "detalbert", *(ROOT / "detalbert").iterdir()]
    named = set(re.findall(r"\w[\w/]*\.py\b", text))
    assert len(named) > 40
    assert [name for name in named if not any((at / name).is_file() for at in places)] == []


if __name__ == "__main__":
    sys.exit("\n".join(all_broken()) or 0)
