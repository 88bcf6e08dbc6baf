"""Mutants: which faults are planted, which places stay, and that the command finds what it says."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.mutation import find_mutants

pytestmark = pytest.mark.usefixtures("real_python")

SOURCE = '''
"""Not 1 < 2."""
import os

LIMIT: int = 3


def f(a: int = 1, *, strict: bool = True) -> int:
    if a < LIMIT:
        raise ValueError(f"{a + 1} of {LIMIT}")
    print(a - 1)
    a += g(a, b=2)
    return -a
'''


def changes(source: str, skipped: dict[str, str] | None = None) -> list[tuple[str, str]]:
    return [(mutant.before, mutant.after) for mutant in find_mutants(source, skipped or {})]


def test_the_faults_of_a_small_file() -> None:
    assert changes(SOURCE) == [
        ("3", "4"),
        ("True", "False"),
        ("1", "2"),
        ("if a < LIMIT:", "if not a < LIMIT:"),
        ("a < LIMIT", "a <= LIMIT"),
        ("raise ValueError(f'{a + 1} of {LIMIT}')", "pass"),
        ("print(a - 1)", "pass"),
        ("a += g(a, b=2)", "pass"),
        ("a += g(a, b=2)", "a -= g(a, b=2)"),
        ("g(a, b=2)", "g(a)"),
        ("2", "3"),
        ("-a", "a"),
    ]
    for mutant in find_mutants(SOURCE, {}):
        assert mutant.source != SOURCE and compile(mutant.source, "mutant", "exec")


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a + b * c", {"a - b * c", "a", "b * c", "b / c", "b", "c"}),
        ("a and b and c", {"a or b or c", "b and c", "a and c", "a and b"}),
        ("a if b is c else d", {"a", "d", "b is not c"}),
        ("f(a, b, c)", {"f(b, a, c)", "pass"}),
        ("max(a, b)", {"pass"}),
        ("x = zip(a, b, strict=True)", {"zip(b, a, strict=True)"}),
        ("self.a = b", {"pass"}),
        ("with a:\n    b", {"if True:"}),
        ("[a for a in b if c]", {" for a in b"}),
        ("while not a:\n    break", {"a", "pass"}),
        ("x = 0.0", {"1.0"}),
        ("x = 'text'", set()),
    ],
)
def test_the_faults_of_a_statement(source: str, wanted: set[str]) -> None:
    found = {after for _, after in changes(source)}
    assert {text.strip() for text in wanted} == {text.strip() for text in found}


def test_a_statement_is_left_out_by_how_it_begins() -> None:
    left = changes(SOURCE, {"if a < LIMIT:": "an example"})
    assert len(left) == len(changes(SOURCE)) - 3
    with pytest.raises(ValueError, match="no statement begins with 'if b'"):
        find_mutants(SOURCE, {"if b": "gone"})


def test_the_command_says_what_survives() -> None:
    module = ROOT / "detalbert" / "engine" / "rows.py"
    before = module.read_bytes()
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "--module", "rows", "--count", "1", "--jobs", "1"],
        cwd=ROOT, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "detalbert/engine/rows.py: 1 of 1\n1 of 1 mutants are killed: 100.0%" in done.stdout
    assert module.read_bytes() == before
