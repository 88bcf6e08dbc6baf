"""The workload of CONTRIBUTING.md: with no edit but its row it trains, resumes and is planned."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from detalbert.training.manifest import read_manifest
from tests.conftest import ROOT, launcher
from tests.fakes.runs import newest, steps_of
from tests.same_bits import differences

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
PRODUCT = "benchmarks cluster configs detalbert embedded lm pretrain reports".split()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the product with the template in its place, and a row in the table."""
    (row,) = re.findall("```python\n(.*?)```", PAGE, re.DOTALL)
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
    def start(*words: Any, processes: int = 1) -> str:
        command = [*launcher(processes, python), *map(str, words)]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    for processes in (1, 2):
        uncut, cut = checkout / f"runs/{processes}", checkout / f"runs/{processes}-cut"
        train = "train.py", "--config", "parity/parity.yaml", "--output-dir"
        assert f"{processes} slot(s)" in start(*train, uncut, processes=processes)
        losses = [v["loss"] for v in read_manifest(newest(uncut))["validations"]]
        assert len(losses) == 4 and losses[-1] < losses[0] / 2
        assert (newest(uncut) / "code" / "parity" / "__init__.py").is_file()
        shutil.copytree(uncut, cut)
        while steps_of(cut)[-1] > 26:
            shutil.rmtree(newest(cut))
        assert "resumed at step 26 of 48" in start(*train, cut, processes=processes)
        assert differences(uncut, cut) == []
    assert "nothing to fix" in start("-m", "cluster.check", "parity/parity.yaml")
    said = start("-m", "cluster.plan", "parity/parity.yaml", "--any")
    assert said.startswith("parity/parity.yaml: Take 1 x ") and "8 windows; as" in said
