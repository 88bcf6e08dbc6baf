"""Docstrings say what a thing is or does from their first word on; a name means one thing."""

import ast
import collections
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = {path.parent for path in ROOT.glob("*/__init__.py")} - {ROOT / "tests"}
PRODUCT = sorted({*ROOT.glob("*.py"), *(path for at in PACKAGES for path in at.rglob("*.py"))})
WRONG = {"What", "Of", "On", "As", "At", "Where", "Nobody", "All", "None"}
OWNERS = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def test_docstrings_begin_with_a_verb_or_a_noun():
    wrong = []
    for file in PRODUCT:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, OWNERS) else None
            words = (text or "").split() or [""]
            if words[0].rstrip(",.:;") in WRONG:
                wrong.append(f"{file.relative_to(ROOT)}:{node.body[0].lineno}: {words[:6]}")
    assert not wrong, "\n".join(wrong)


# Public names that several modules define, and why each means one thing.
SHARED = {
    "main parse_arguments run": "a command: its start, its flags, its work",
    "check": "the fault or findings that keep an experiment from running, by workload",
    "write_corpus": "the token shards of a workload",
    "load load_model load_tokenizer": "from a file or folder, for each kind of it",
    "export": "write a folder that transformers reads, for each kind of model",
    "predict serve": "a benchmark has the name of the command that it measures",
    "validation_loader": "this rank's rows of the validation windows",
    "read sweep writing": "bytes of a file; leftovers of killed processes; errors of a disk",
}


def test_a_public_name_means_one_thing():
    places = collections.defaultdict(list)
    for file in PRODUCT:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, OWNERS) and not node.name.startswith("_"):
                places[node.name].append(str(file.relative_to(ROOT)))
    allowed = {name for names in SHARED for name in names.split()}
    twice = {name: at for name, at in places.items() if len(at) > 1 and name not in allowed}
    assert len(places) > 500 and twice == {}
