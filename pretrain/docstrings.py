"""Real English that every machine with Python has: the documentation of its installed packages.

  python -m pretrain.docstrings text.jsonl

One document per docstring of some length, each text once, nothing imported or run. It is there
for a first pretraining run without a network; what it says depends on what is installed.
"""

import argparse
import ast
import inspect
import json
import re
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import Iterator

from run_folder import write_whole

_SHORTEST = 300  # characters
_CODE = re.compile(r"^\s*(>>>|\.\.\.|\.\. |::|[-=~^`*#+|]{3,}).*$", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="a .jsonl file")
    parser.add_argument("--megabytes", type=float, default=8, help="of text, at most")
    args = parser.parse_args()
    seen, size = set(), 0
    with write_whole(args.output) as file:
        for text in _docstrings():
            # Families of classes share their first words: one of each, or copies would be held out.
            if text[:80] in seen:
                continue
            seen.add(text[:80])
            file.write(json.dumps({"text": text}) + "\n")
            size += len(text)
            if size > args.megabytes * 1e6:
                break
    print(f"{len(seen):,} documents, {size:,} characters in {args.output}")
    return 0


def _docstrings() -> Iterator[str]:
    roots = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    for root in dict.fromkeys(roots):
        for path in sorted(root.rglob("*.py")):
            if root == roots[0] and "site-packages" in path.parts:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = ast.parse(path.read_text(encoding="utf-8"))
            except (OSError, SyntaxError, ValueError, RecursionError):
                continue
            yield from filter(None, map(_prose, ast.walk(tree)))


def _prose(node: ast.AST) -> str:
    """The docstring of a module, class or function in one line, without examples; "" for none."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    text = ast.get_docstring(node, clean=False) if isinstance(node, kinds) else None
    if not text:
        return ""
    text = " ".join(_CODE.sub("", inspect.cleandoc(text)).split())
    return text if len(text) >= _SHORTEST else ""


if __name__ == "__main__":
    sys.exit(main())
