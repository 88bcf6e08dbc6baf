"""Each stage, short: a complete result, a row of the table; a planted difference fails it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from benchmarks import baselines, predict, serve, step, table
from benchmarks.__main__ import main
from benchmarks.table import BEGIN, END
from detalbert.squad import world
from tests.conftest import ROOT, Script
from tests.fakes.text import contexts

# Of every result.
KEYS = {"stage", "versions", "device", "commit", "load", "time", "identical", "ratio"}
ResultOf = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags: a folder of few generated questions, few documents, the smallest model."""
    folder = tmp_path_factory.mktemp("squad")
    for name, split in (("train", "train"), ("dev", "validation")):
        (folder / f"{name}.json").write_text(json.dumps(world.load_world(split)))
    text = folder / "text.txt"
    text.write_text("\n".join(["", *contexts(60)]))

    words = ["--data", str(folder), "--text", str(text), "--tokenizer", "embedded/albert-tiny"]
    words += ["--repeats", "1", "--examples", "40", "--windows", "4", "--shape", "tiny"]
    return words


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    """The processes of a stage are forks of the tests' zygote."""
    monkeypatch.setattr(sys, "executable", python)


@pytest.fixture
def result_of(
    tiny: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> ResultOf:
    """`result_of(stage, *words)`: what a stage writes, after it was put into a page."""

    def run(stage: str, *words: str) -> dict[str, Any]:
        file = tmp_path / "results" / f"{stage}.json"
        status = main([stage, *tiny, *words, "--json", str(file)])
        assert status == 0, capsys.readouterr().err
        result = json.loads(file.read_text())
        assert result.keys() >= KEYS
        assert result["identical"]
        assert [path.name for path in file.parent.iterdir()] == [file.name]  # nothing left aside
        monkeypatch.setattr(table, "RESULTS", file.parent)
        assert_rendered(stage, tmp_path / "page.md")
        return result

    return run


def assert_rendered(stage: str, page: Path) -> None:
    """Assert that a stage's row replaces what is between the marks of a page, and nothing else."""
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main(["render", "--readme", str(page)]) == 0
    first, *table, last = page.read_text().splitlines()
    assert first == "before"
    assert last == "after"
    assert "old" not in table
    assert len(table) == 5  # the two marks, a head of two lines, and the row
    assert table[3].startswith(f"| {stage}")


@pytest.mark.parametrize("workload", ["finetuning", "pretraining", "lm"])
def test_a_step_of_each_workload(workload: str, result_of: ResultOf) -> None:
    result = result_of("step", "--workload", workload)

    assert result["settings"]["workload"] == workload
    unit = "tokens" if workload == "lm" else "windows"
    for side in ("ours", "peer"):
        measured = result["results"][side]
        rate = measured[f"{unit}_per_second"]
        assert rate["median"] > 0
        assert {"spread", "repeats"} <= rate.keys()
        if workload != "lm":
            assert 0 < measured["mfu"]["median"] < 1


def test_two_processes(result_of: ResultOf) -> None:
    losses = result_of("lm")["losses"]
    assert len(losses["ours"]) == 8
    assert losses["ours"] == pytest.approx(losses["peer"], abs=1e-4)


def test_fine_tuning_from_files_to_scores(result_of: ResultOf) -> None:
    result = result_of("finetune", "--examples", "12")
    assert result["settings"]["train"] == 12
    assert result["settings"]["dev"] == 6
    for scores in result["results"].values():
        assert {"exact", "f1"} <= scores.keys()


def test_prediction_beside_its_model(
    result_of: ResultOf, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "SMALL", 6)
    monkeypatch.setattr(predict, "LARGE", 12)
    run_python = predict.run_python

    def run_fork(_: str, source: str, *words: Any) -> Any:
        """Run a script's file: with `-c` it would be no fork."""
        _, file = script(source)
        return run_python(file, *words)

    monkeypatch.setattr(predict, "run_python", run_fork)

    result = result_of("predict", "--examples", "0")  # its own numbers, which are above

    assert result["windows"] >= 12
    assert set(result["peak_mib"]) == {"6", "12"}
    assert min(result["peak_mib"].values()) > 100
    assert result["ratio"] > 0


def test_serving_beside_another_checkout(
    result_of: ResultOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUESTIONS", "CLIENTS", "ALONE"):
        monkeypatch.setattr(serve, name, 4)
    result = result_of("serve", "--before", str(ROOT))
    assert result["settings"]["questions"] == 4
    assert result["median_seconds_of_one_client"]["ours"]["median"] > 0


@pytest.mark.parametrize("workload", ["finetuning", "pretraining"])
def test_another_loss_fails_the_step(
    workload: str,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    baseline_step = baselines.Baseline.step

    def one_percent_off(*arguments: Any) -> Any:
        return baseline_step(*arguments) * 1.01

    monkeypatch.setattr(baselines.Baseline, "step", one_percent_off)
    assert main(["step", *tiny, "--workload", workload]) == 1
    assert "not equal: step" in capsys.readouterr().err


@pytest.mark.parametrize(("off", "status"), [(0.9e-4, 0), (1.1e-4, 1), (float("nan"), 1)])
def test_one_other_loss_of_a_language_model_is_noticed(
    off: float,
    status: int,
    tiny: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured: dict[str, Any] = {
        "losses": {"ours": [6.0, 5.5], "peer": [6.0, 5.5 + off]},
        "seconds": {"ours": [2.0] * 2, "peer": [2.0] * 2},
        "flops": [1.0] * 2,
        "memory": {},
        "settings": {"precision": "torch.float32", "tokens_per_window": 32},
    }
    monkeypatch.setattr(step, "train_both", lambda *_: measured)

    assert main(["step", "--workload", "lm", *tiny]) == status

    if status:
        assert "not equal: step: loss 5.5 in step 1" in capsys.readouterr().err


def test_mistakes_are_one_line(
    tiny: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "predict.py").write_text("raise SystemExit(2)\n")
    commands = [
        ["step", "--data", str(tmp_path / "absent")],
        ["finetune", *tiny, "--model", str(tmp_path)],
        ["lm", "--text", str(tmp_path / "absent.txt")],
        ["lm", "--text", str(file)],
        ["lm", *tiny, "--json", str(file / "x.json")],
        ["serve"],
        ["render", "--readme", str(file)],
        ["serve", "--before", str(tmp_path)],
    ]
    for arguments in commands:
        assert main(arguments) == 2, arguments
        log = capsys.readouterr().err.splitlines()
        lines = [line for line in log if line and "it/s]" not in line]  # no bar of progress
        assert len(lines) == 1, arguments
    assert lines[0].endswith(f"--before {tmp_path}: its predict.py --serve ended at once")


def test_the_model_alone_runs_every_row() -> None:
    forward = Mock(device=torch.device("cpu"))
    rows: list[Any] = [{"input_ids": torch.tensor([number])} for number in range(3)]
    predict.run_forward(cast(Any, SimpleNamespace(forward=forward)), rows)
    assert [int(call.args[0]["input_ids"]) for call in forward.call_args_list] == [0, 1, 2]
