"""Commands on the pages: what a reader can paste, in order, and what it needs."""

import re
import subprocess
from collections.abc import Iterator

from tests.conftest import ROOT

STARTS = r"(?:python|make|det|torchrun|pip|export|git|curl|cat|HF_HUB_OFFLINE=1|\.venv/bin/\w+) "
# What a command needs that a test does not have, by the words of the command and its comment.
NEEDS = {
    "a cluster": r"^det |DET_MASTER|--experiment|--since|--as |trial:\d|experiment:\d",
    "a GPU": r"# .*\bGPUs?\b",
    "another checkout": r"^git |embedded\.pretrain",
    "an installation": r"^(\.venv/bin/)?pip |transformers serve|localhost:8000/v1/",
    "an hour": r"benchmarks step",
    "the network": r"# official",
    "the makefile": r"^make ",  # its commands run these tests
}


def pages() -> list[str]:
    """The pages of the repository, as git lists them."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True)
    return [name for name in listed.stdout.split() if name != "CHANGELOG.md"]


def commands(page: str) -> Iterator[str]:
    """Yield the commands in the blocks of a page, continued lines joined."""
    text = (ROOT / page).read_text().replace("\\\n", " ")
    for block in re.findall(r"^```(?:bash|sh)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            line = re.sub(r" {2,}(?!#)", " ", line.strip().removeprefix("$ "))
            if re.match(STARTS, line):
                yield line


def need(command: str) -> str | None:
    """Return what a command needs that a test does not have."""
    return next((name for name, words in NEEDS.items() if re.search(words, command)), None)
