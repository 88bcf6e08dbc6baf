"""How easily code is read, by figures: nodes of the syntax tree on a code line, arguments by
keyword, names without a meaning, comments between the steps.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
VAGUE = {
    *("found", "said", "facts", "each", "known", "kept", "there", "more", "some", "mine"),
    *("given", "what", "least", "most", "one", "rest", "told", "asked"),
}


@dataclass
class Figures:
    """Sums over files."""

    lines: int = 0
    code_lines: int = 0  # neither blank nor a comment, a docstring or an import
    nodes: int = 0
    positional: int = 0
    by_keyword: int = 0
    any_types: int = 0
    splatted: int = 0  # tuples that a function makes only to splat them
    names: int = 0  # that are assigned
    vague: int = 0
    comments: int = 0

    def add(self, source: str) -> float:
        """Count a file; return its nodes on a code line, 0 of one with a few lines."""
        tree = ast.parse(source)
        lines = source.splitlines()
        code_lines = count_code_lines(lines, tree)
        nodes = list(ast.walk(tree))
        for node in nodes:
            self.count(node)
        self.lines += len(lines)
        self.comments += sum(line.lstrip().startswith("#") for line in lines)
        self.code_lines += code_lines
        self.nodes += len(nodes)
        return len(nodes) / code_lines if code_lines > 10 else 0.0

    def count(self, node: ast.AST) -> None:
        match node:
            case ast.Call():
                self.positional += len(node.args)
                self.by_keyword += len(node.keywords)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.splatted += count_splatted(node)
            case ast.Name(id="Any"):
                self.any_types += 1
            case ast.Name(id=name, ctx=ast.Store()):
                self.names += 1
                self.vague += name in VAGUE


def count_splatted(function: ast.AST) -> int:
    tuples: set[str] = set()
    splatted: list[str] = []
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple()):
                tuples.add(name)
            case ast.Call(args=arguments):
                for argument in arguments:
                    if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Name):
                        splatted.append(argument.value.id)
    return sum(name in tuples for name in splatted)


def count_code_lines(lines: list[str], tree: ast.Module) -> int:
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            left_out.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    count = 0
    for number, line in enumerate(lines, start=1):
        is_code = line.strip() != "" and not line.lstrip().startswith("#")
        count += is_code and number not in left_out
    return count


def files_in(*folders: str) -> list[Path]:
    files: list[Path] = []
    for folder in folders:
        files += (ROOT / folder).rglob("*.py")
    return files


@pytest.fixture(scope="module")
def product() -> Figures:
    figures = Figures()
    files = files_in("benchmarks", "cluster", "detalbert", "docs", "lm", "pretrain", "reports")
    # At more than 12.5 nodes one has to read a line twice.
    densities = {path: figures.add(path.read_text()) for path in [*ROOT.glob("*.py"), *files]}
    assert [path.name for path, density in densities.items() if density > 12.5] == []
    return figures


def test_the_product_is_not_packed(product: Figures) -> None:
    """httpx has 6.6 nodes on a code line, nanochat 9.4."""
    assert product.nodes <= 10.5 * product.code_lines
    assert product.splatted == 0


def test_arguments_and_values_say_what_they_are(product: Figures) -> None:
    assert product.by_keyword >= 0.22 * (product.positional + product.by_keyword)
    assert product.any_types <= 0.020 * product.code_lines
    assert product.vague <= 0.02 * product.names


def test_reasons_stand_between_the_steps(product: Figures) -> None:
    assert product.comments >= 0.03 * product.lines


def test_tests_are_not_packed() -> None:
    figures = Figures()
    for path in files_in("tests"):
        figures.add(path.read_text())
    assert figures.nodes <= 11.5 * figures.code_lines
    assert figures.vague <= 0.03 * figures.names
