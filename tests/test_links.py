"""Every relative link of a page leads to a file that is there, and to a heading of it.

python -m tests.test_links    # what is wrong, a line each; exit status 1 if anything is
"""

import re
import sys

from tests.pages import ROOT, pages


def text_of(page):
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """The fragments that GitHub gives to the headings of a page."""
    fragments = set()
    for heading in re.findall(r"^#+ +(.*)$", text_of(page), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", heading.lower())
        fragments.add(words.replace(" ", "-"))
    return fragments


def broken(page):
    """The links of a page that lead nowhere."""
    faults = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        is_address = re.match(r"\w+:", link)
        if not is_address and not leads_somewhere(page, link):
            faults.append(f"{page}: {link}")
    return faults


def leads_somewhere(page, link):
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not target.exists():
        return False
    return not anchor or anchor in anchors(target)


def all_broken():
    faults = []
    for page in pages():
        faults += broken(ROOT / page)
    return faults


def test_every_link_leads_somewhere():
    assert all_broken() == []


def test_the_layout_names_modules_that_exist():
    text = (ROOT / "docs" / "layout.md").read_text() + (ROOT / "docs" / "layout.svg").read_text()
    folders = [ROOT, ROOT / "detalbert", *(ROOT / "detalbert").iterdir()]
    modules = set(re.findall(r"\w[\w/]*\.py\b", text))
    assert len(modules) > 20
    for module in modules:
        assert any((folder / module).is_file() for folder in folders), module


if __name__ == "__main__":
    sys.exit("\n".join(all_broken()) or 0)
