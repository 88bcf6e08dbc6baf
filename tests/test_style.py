"""Docstrings say what a thing is or does from their first word on."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = (
    "*.py",
    *(f"{x}/**/*.py" for x in "benchmarks cluster detalbert lm pretrain reports".split()),
)
WRONG = {"What", "Of", "On", "As", "At", "Where", "Nobody", "All", "None"}
OWNERS = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    wrong = []
    for file in sorted(path for pattern in PRODUCT for path in ROOT.glob(pattern)):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, OWNERS) else None
            words = (text or "").split() or [""]
            if words[0].rstrip(",.:;") in WRONG:
                wrong.append(f"{file.relative_to(ROOT)}:{node.body[0].lineno}: {words[:6]}")
    assert not wrong, "\n".join(wrong)
