"""`train.py --dry-run`: it says what a start would do, finds its mistakes, and leaves nothing."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from detalbert.training import dry_run
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING
from tests.engine.trials import config_file
from tests.fakes.runs import change, refusal, run

pytestmark = pytest.mark.slow
WORKLOADS = {"fine-tuning": TINY, "pretraining": TINY_PRETRAINING, "language model": TINY_LM}
NAMES = "train validation model device batch steps memory time output".split()


@pytest.fixture(autouse=True)
def in_a_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dry_run, "SECONDS", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()


def files(folder: Path) -> dict[str, int]:
    """When each file and folder was last changed."""
    return {str(path): path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def lines_of(shown: str) -> dict[str, str]:
    """The named lines of the log."""
    found = re.findall(r"^INFO: (\S+) +(.*)$", shown, re.MULTILINE)
    return {name: text for name, text in found if name in NAMES}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_says_what_a_start_would_do_and_leaves_nothing(
    workload: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    config = config_file(tmp_path, WORKLOADS[workload], cache)
    before = files(tmp_path)

    assert run(config, tmp_path / "out", "--dry-run") == 0

    after = files(tmp_path)
    del before[str(tmp_path / "temporary")], after[str(tmp_path / "temporary")]
    assert after == before
    lines = lines_of(capsys.readouterr().err)
    assert list(lines) == NAMES
    assert "GiB of RAM, after some steps" in lines["memory"]
    assert re.match(r"about \d+s from here on: ", lines["time"])
    assert lines["output"] == f"{tmp_path / 'out'}, from the first step"


def test_it_reads_the_windows_that_are_there_and_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_file(tmp_path, TINY, tmp_path / "cache")
    assert run(config, tmp_path / "out") == 0
    steps = TINY["hyperparameters"]["max_steps"]
    before = files(tmp_path / "cache") | files(tmp_path / "out")
    capsys.readouterr()

    assert run(config, tmp_path / "out", "--dry-run") == 0

    shown = capsys.readouterr().err
    assert "encoding the questions" not in shown
    assert lines_of(shown)["output"].endswith(f"resumed after step {steps}")
    assert lines_of(shown)["time"].startswith("none: the run there is complete (--resume never ")
    after = files(tmp_path / "cache") | files(tmp_path / "out")
    assert {path: when for path, when in after.items() if before.get(path) != when} == {}


def test_mistakes_are_those_of_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key, data, a window that is too long, another run's folder, somebody's file."""

    def check(config: Path, output: Path, *more: Any) -> None:
        expected = refusal(capsys, config, output, *more)
        assert refusal(capsys, config, output, *more, "--dry-run") == expected

    cache = tmp_path / "cache"
    config = config_file(tmp_path, TINY, cache)
    check(config, tmp_path / "key", "--set", "hyperparameters.learn_rate=1")
    check(config, tmp_path / "data", "--set", f"data.train={tmp_path / 'no.json'}")
    long = ["--set", "hyperparameters.model_config.max_position_embeddings=16"]
    check(config, tmp_path / "long", *long)
    check(config, tmp_path / "decay", "--set", "hyperparameters.early_stopping=1000")

    own = tmp_path / "own"
    own.mkdir()
    (own / "config.yaml").write_text("mine: true\n")
    check(config, own)

    assert run(config, tmp_path / "out") == 0
    capsys.readouterr()
    check(change(config, base_learning_rate=0.5), tmp_path / "out")


def test_it_is_for_one_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = config_file(tmp_path, TINY, tmp_path / "cache")
    assert "without torchrun" in refusal(capsys, config, tmp_path / "out", "--dry-run")
