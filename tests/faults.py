"""Plant faults, one after another, and print those that no test sees.

    coverage run --rcfile tests/coverage.ini -m pytest -n 2 && coverage combine -q
    python -m tests.faults --seed 1 --count 100             # exit status 1: less than 90 % are seen
    python -m tests.faults --seed 1 --count 100 --json seen.json

cosmic-ray makes the faults, in functions of every package, drawn with a seed. Each is planted in a
copy of the tree. Only the tests run that reach its line, by the contexts in `.coverage`.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import coverage
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import MutationVisitor

ROOT = Path(__file__).resolve().parents[1]
WANTED = 0.9  # of the faults
SECONDS = 900  # of the tests of one fault; a fault may be a loop without end
OPERATORS = """
ReplaceBinaryOperator_Add_Sub ReplaceBinaryOperator_Sub_Add ReplaceBinaryOperator_Mul_Add
ReplaceBinaryOperator_Div_Mul ReplaceBinaryOperator_FloorDiv_Mul ReplaceBinaryOperator_Mod_Add
ReplaceComparisonOperator_Eq_NotEq ReplaceComparisonOperator_NotEq_Eq
ReplaceComparisonOperator_Lt_LtE ReplaceComparisonOperator_LtE_Lt ReplaceComparisonOperator_Gt_GtE
ReplaceComparisonOperator_GtE_Gt ReplaceComparisonOperator_Is_IsNot
ReplaceComparisonOperator_IsNot_Is ReplaceUnaryOperator_Delete_Not ReplaceUnaryOperator_Delete_USub
AddNot ReplaceAndWithOr ReplaceOrWithAnd ReplaceTrueWithFalse ReplaceFalseWithTrue NumberReplacer
ZeroIterationForLoop ReplaceBreakWithContinue ReplaceContinueWithBreak
""".split()


class Fault(NamedTuple):
    """A place that cosmic-ray can change."""

    path: str
    line: int
    operator: str
    occurrence: int  # of this operator in the file, from 0

    def source(self, root: Path) -> str:
        """The file with this fault."""
        operator, code = (
            plugins.get_operator(f"core/{self.operator}")(),
            (root / self.path).read_text(),
        )
        return MutationVisitor.mutate_code(code, operator, self.occurrence)


def find_faults(root: Path) -> Iterator[Fault]:
    """All faults in functions of the product."""
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=root, text=True)
    for path in listed.splitlines():
        if path.startswith("tests/"):
            continue
        tree = get_ast((root / path).read_text())
        for name in OPERATORS:
            operator, occurrence = plugins.get_operator(f"core/{name}")(), 0
            for node in ast_nodes(tree):
                for start, _ in operator.mutation_positions(node):
                    # Numbers are two fifths of all places, and many are sizes and seconds.
                    if _in_function(node) and (name != "NumberReplacer" or occurrence % 4 == 0):
                        yield Fault(path, start[0], name, occurrence)
                    occurrence += 1


def _in_function(node: object) -> bool:
    while node := getattr(node, "parent", None):
        if getattr(node, "type", "") == "suite" and node.parent.type == "funcdef":
            return True
    return False


def tests_of(fault: Fault, data: coverage.CoverageData, root: Path) -> list[str]:
    """The tests that run the fault's line."""
    contexts = data.contexts_by_lineno(str(root / fault.path)).get(fault.line, [])
    return sorted({context.split(" (")[0] for context in contexts if context})


def is_seen(fault: Fault, tests: list[str], copy: Path) -> bool:
    """Whether a test fails with the fault; quick tests come first."""
    file = copy / fault.path
    before = file.read_text()
    file.write_text(fault.source(copy))
    try:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        for kind in ("quick", "not quick and not soak"):
            done = subprocess.run(
                [*command, "-m", kind, *tests], cwd=copy, capture_output=True, timeout=SECONDS
            )
            if done.returncode not in (0, 5):  # 5: none is of this kind
                return True
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        file.write_text(before)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout, with its .coverage")
    parser.add_argument("--json", type=Path, help="write each fault and whether it is seen")
    args = parser.parse_args()
    drawn = random.Random(args.seed).sample(list(find_faults(args.root)), args.count)
    data = coverage.CoverageData(str(args.root / ".coverage"))
    data.read()
    results = []
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        copies = [Path(name) / str(number) / "copy" for number in range(2)]
        for copy in copies:
            copy.parent.mkdir()
            (copy.parent / "shared").symlink_to(args.root.parent / "shared")
            subprocess.run(["git", "worktree", "add", "-q", "--detach", copy], cwd=args.root)

        def judge(share: int) -> None:
            for fault in drawn[share::2]:
                tests = tests_of(fault, data, args.root)
                seen = bool(tests) and is_seen(fault, tests, copies[share])
                results.append({**fault._asdict(), "seen": seen, "tests": len(tests)})
                print("seen" if seen else "MISSED", *fault, f"({len(tests)} tests)", flush=True)

        list(pool.map(judge, range(2)))
        for copy in copies:
            subprocess.run(["git", "worktree", "remove", "--force", copy], cwd=args.root)
    seen = sum(result["seen"] for result in results)
    print(f"{seen} of {len(results)} faults are seen")
    if args.json:
        args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if seen >= WANTED * len(results) else 1


if __name__ == "__main__":
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    sys.exit(main())
