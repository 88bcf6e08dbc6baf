"""Plant faults, one after another, and print those that no test sees.

    python -m tests.faults --seed 1 --count 100             # exit status 1: less than 90 % are seen
    python -m tests.faults "lm/*.py" "reports/*.py"         # in these alone

cosmic-ray makes the faults, in functions of every package, drawn with a seed. Each is planted in a
copy of the tree. Of the tests that run its statement, by the contexts in `.coverage`, which `make
soak` writes before, all quick ones run, and the nearest of the others.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import coverage
import pytest
from cosmic_ray import plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import use_mutation

from tests.contexts import Users
from tests.zygote import start_zygote

ROOT = Path(__file__).resolve().parents[1]
WANTED = 0.9  # of the faults
SECONDS = 600  # of one fault's tests; then it is missed
OTHERS = 60  # of one fault's tests that are not quick
PYTEST = "-m pytest -x -q -p no:cacheprovider".split()
PYTEST += "-o faulthandler_timeout=120 -o faulthandler_exit_on_timeout=true".split()  # of a test
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


def find_faults(root, patterns):
    """All faults in functions of the product's files of these patterns."""
    listed = subprocess.check_output(["git", "ls-files", *patterns], cwd=root, text=True)
    for path in listed.splitlines():
        if path.startswith("tests/"):
            continue
        tree = get_ast((root / path).read_text())
        for name in OPERATORS:
            operator = plugins.get_operator(f"core/{name}")()
            occurrence = 0
            for node in ast_nodes(tree):
                for _ in operator.mutation_positions(node):
                    line = _line(node)
                    # Numbers are two fifths of all places, and many are sizes and seconds.
                    drawn = name != "NumberReplacer" or occurrence % 4 == 0
                    if line and drawn:
                        yield Fault(path, line, name, occurrence)
                    occurrence += 1


def _line(node):
    """The first line of its statement, whose tests may not all reach the fault's own; 0 outside of
    functions, and for an argument of `zip` or `print` that changes no result."""
    if node.parent.type == "argument" and node.parent.get_first_leaf().value in ("strict", "flush"):
        return 0
    line = 0
    while parent := getattr(node, "parent", None):
        if getattr(parent, "type", "") == "suite":
            line = line or node.start_pos[0]
            if parent.parent.type == "funcdef":
                return line
        node = parent
    return 0


def tests_of(fault, data, users):
    """The tests that run the fault's statement, or use a fixture that did; where a process without
    a context ran it, those of the folder that fork, and of the file's name. The nearest first.
    """
    path = Path(fault.path)
    file = f"/test_{path.stem}.py"
    folder = f"/{path.parent.name or 'cluster'}/"  # as train.py's
    tests = set()
    for context in data.contexts_by_lineno(str(ROOT / fault.path)).get(fault.line, [""]):
        if context.startswith("@"):
            tests.update(users.of.get(context[1:], ()))
        else:
            tests.add(context)
    if "" in tests:
        forking = [*users.of["fork"], *users.of["sandbox"]]
        tests.update(name for name in forking if folder in name)
        tests.update(name for name in users.all if file in name)

    def distance(name):
        return file not in name, folder not in name, name

    nearest_first = sorted(tests & users.all, key=distance)
    quick = [name for name in nearest_first if name in users.quick]
    others = [name for name in nearest_first if name not in users.quick]
    return quick + others[:OTHERS]


def is_seen(fault, tests, copy):
    """Whether a test fails with the fault, or hangs. pytest is a zygote's fork."""
    python = sys.executable
    env = os.environ | {"FAULTS": "1"}
    fork = [python, "-SE", str(ROOT / "tests" / "zygote.py"), "run", os.environ["ZYGOTE_OWNER"]]
    command = [*fork, python, python, *PYTEST, *tests]
    operator = plugins.get_operator(f"core/{fault.operator}")()
    with use_mutation(copy / fault.path, operator, fault.occurrence):
        try:
            ended = subprocess.run(command, cwd=copy, env=env, capture_output=True, timeout=SECONDS)
            return ended.returncode != 0
        except subprocess.TimeoutExpired:
            return False


def judge(faults, tests):
    """Whether each fault is seen by its tests; two at a time, each in a copy of the last commit.

    Tests and what they start are forks of one process, which has imported torch.
    """
    seen = [False] * len(faults)
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        start_zygote(Path(name))

        def share(first):
            copy = Path(name) / str(first) / "main"
            copy.parent.mkdir()
            subprocess.run(["git", "worktree", "add", "-q", "--detach", copy], cwd=ROOT, check=True)
            for number in range(first, len(faults), 2):
                seen[number] = bool(tests[number]) and is_seen(faults[number], tests[number], copy)
                outcome = "seen" if seen[number] else "MISSED"
                print(outcome, *faults[number], f"({len(tests[number])} tests)", flush=True)
            subprocess.run(["git", "worktree", "remove", "--force", copy], cwd=ROOT, check=True)

        list(pool.map(share, range(2)))
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patterns", nargs="*", default=["*.py"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    drawn = random.Random(args.seed).sample(list(find_faults(ROOT, args.patterns)), args.count)
    data = coverage.CoverageData(str(ROOT / ".coverage"))
    data.read()
    users = Users()
    pytest.main(["--collect-only", "-qq", str(ROOT / "tests")], plugins=[users])
    seen = judge(drawn, [tests_of(fault, data, users) for fault in drawn])
    print(f"{sum(seen)} of {len(seen)} faults are seen")
    return 0 if sum(seen) >= WANTED * len(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
