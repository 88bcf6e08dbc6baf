"""Commands on the pages: what a reader can paste, in order, and what it needs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STARTS = "python make det torchrun pip export git curl cat cp head HF_HUB_OFFLINE=1".split()
STARTS = rf"(?:{'|'.join(STARTS)}|\.venv/bin/\w+) "
LINE = r"^for [^\n]*\n(?: [^\n]*\n)+done|^[^\n]+"  # a loop is one command
PROGRAM = "python - <<'END'\n"
# What a command needs that a test does not have, by the words of the command and its comment.
NEEDS = {
    "a cluster": r"(^|\n) ?det |DET_MASTER|--experiment|--since|--as |trial:\d|experiment:\d",
    "a bucket": r"(s3|gs|az)://",
    "a GPU": r"# .*\bGPUs?\b",
    "another checkout": r"^git |embedded\.pretrain",
    "an installation": r"^(\.venv/bin/)?pip |transformers serve|lm-eval run|localhost:8000/v1/",
    "an hour": r"benchmarks step",
    "a folder": r"\(FOLDER",  # a model card's
    "a workload": r"WorkloadRow|experiment: Experiment",  # tests/test_contributing.py writes them
    "the network": r"# (official|downloads)",
    "the makefile": r"^make ",  # its commands run these tests
}


def pages():
    """The repository's pages."""
    paths = [*ROOT.glob("*.md")]
    for folder in ROOT.glob("[!.]*"):
        if folder.name != "runs":  # it has copies of the code
            paths += folder.glob("**/*.md")
    return [str(path.relative_to(ROOT)) for path in sorted(paths)]


def commands(page):
    """Yield the commands in the blocks of a page, continued lines joined; a program or a loop is
    one command.
    """
    text = (ROOT / page).read_text().replace("\\\n", " ")
    # Blocks in other languages, too: else their ends would be taken for beginnings.
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for language, block in blocks:
        if language == "python":
            yield f"{PROGRAM}{block}END"
        elif language in ("", "bash"):
            for line in re.findall(LINE, block, re.MULTILINE):
                line = re.sub(r" {2,}(?!#)", " ", line.strip().removeprefix("$ "))
                if re.match(STARTS, line) or "\n" in line:
                    yield line


def need(command):
    """Return what a command needs that a test does not have."""
    return next((name for name, words in NEEDS.items() if re.search(words, command)), None)
