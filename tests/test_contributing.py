"""The workload of CONTRIBUTING.md: with no edit but its row it trains, resumes and is planned."""

import re
import shutil
import subprocess

import pytest

from cluster import rules
from cluster.experiment import parse_experiment
from detalbert.training.manifest import read_manifest
from tests.conftest import ROOT, launcher
from tests.fakes.runs import newest, steps_of
from tests.same_bits import differences

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PRODUCT = "benchmarks cluster configs detalbert embedded lm pretrain reports".split()


@pytest.fixture
def checkout(tmp_path):
    """A copy of the product with the template in its place, and a row in the table."""
    row, _ = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    assert row.count("\n") == 1
    folder = tmp_path / "checkout"
    without_caches = shutil.ignore_patterns("__pycache__")
    for name in PRODUCT:
        shutil.copytree(ROOT / name, folder / name, ignore=without_caches)
    shutil.copytree(ROOT / "docs" / "parity", folder / "parity", ignore=without_caches)
    for path in [*ROOT.glob("*.py"), ROOT / ".detignore"]:
        shutil.copyfile(path, folder / path.name)
    table = folder / "workloads.py"
    table.write_text(re.sub("(?m)^(TABLE = .*\n)", rf"\1{row}", table.read_text()))
    return folder


def test_a_row_in_the_table_is_all_that_a_workload_takes(checkout, python):
    def start(words, processes=1):
        """Run Python with these words, which succeeds; what it prints."""
        ended = subprocess.run(
            [*launcher(processes, python), *words],
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr

    def train(output, processes):
        words = ["train.py", "--config", "parity/parity.yaml", "--output-dir", str(output)]
        return start(words, processes)

    for processes in (1, 2):
        uncut = checkout / f"runs/{processes}"
        assert f"{processes} slot" in train(uncut, processes)
        validations = read_manifest(newest(uncut))["validations"]
        assert len(validations) == 4
        assert 0 < validations[-1]["loss"] < validations[0]["loss"] / 2
        assert (newest(uncut) / "code" / "parity" / "__init__.py").is_file()

        cut = shutil.copytree(uncut, checkout / f"runs/{processes}-cut")
        while steps_of(cut)[-1] > 26:
            shutil.rmtree(newest(cut))
        assert "resumed at step 26 of 48" in train(cut, processes)
        assert differences(uncut, cut) == []

    assert "nothing to fix" in start(["-m", "cluster.check", "parity/parity.yaml"])
    plan = start(["-m", "cluster.plan", "parity/parity.yaml", "--any"])
    assert plan.startswith("take 1 x ")


def test_a_rule_of_the_checker_is_one_function():
    _, rule = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
    names = dict(vars(rules))
    exec(rule, names)
    for trials, problems in ((1, 1), (2, 0)):
        experiment, _ = parse_experiment({"searcher": {"max_trials": trials}}, ROOT)
        assert len(list(names["one_trial"](experiment))) == problems
