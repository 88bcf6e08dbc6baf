"""How densely the product is packed: syntax nodes on a code line, arguments by keyword."""

import ast
from pathlib import Path

from tests.conftest import ROOT

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def product() -> list[Path]:
    files = [*ROOT.glob("*.py")]
    for folder in ("benchmarks", "cluster", "detalbert", "docs", "lm", "pretrain", "reports"):
        files += (ROOT / folder).rglob("*.py")
    return files


def code_lines(source: str, tree: ast.Module) -> int:
    """Lines that are not blank, a comment, a docstring or an import."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            left_out.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(source.splitlines(), start=1)
    return sum(
        number not in left_out and line.strip() != "" and not line.strip().startswith("#")
        for number, line in lines
    )


def test_the_product_is_not_packed() -> None:
    """httpx has 6.6 nodes on a line; at more than 12 one has to read a line twice."""
    nodes = lines = positional = by_keyword = 0
    dense = []
    for path in product():
        source = path.read_text()
        tree = ast.parse(source)
        own_nodes = sum(1 for _ in ast.walk(tree))
        own_lines = code_lines(source, tree)
        if own_lines > 10 and own_nodes > 12.5 * own_lines:
            dense.append(path.name)
        nodes += own_nodes
        lines += own_lines
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                positional += len(node.args)
                by_keyword += len(node.keywords)
    assert dense == []
    assert nodes / lines <= 10.5
    assert by_keyword / (positional + by_keyword) >= 0.21
