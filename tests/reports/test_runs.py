"""`runs`, and the runs that commands find in folders and buckets."""

import json
import pathlib
import re
import sys
from types import SimpleNamespace

import pytest
import yaml

from reports.__main__ import main
from reports.records import _timed_reports
from tests.conftest import ROOT
from tests.reports.test_cost import Terminal
from tests.reports.test_faults import FAULTS, SPEED


def write(
    folder: pathlib.Path, best: object, last: int = 20, metric: str = "f1", **hparams: object
) -> None:
    """Write what a run of 20 steps leaves, of which `last` are done."""
    folder.mkdir(parents=True)
    metrics = {"best": best, "last": {"steps": last}, "throughput": SPEED}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    config = {
        "hyperparameters": {
            "global_batch_size": 8,
            "max_steps": 20,
            "validation_period": 5,
            **hparams,
        },
        "searcher": {"metric": metric, "smaller_is_better": metric == "loss"},
        "data": {"train": ["a"], "seed": 1},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture
def array(tmp_path: pathlib.Path) -> pathlib.Path:
    """A job array's runs: four of f1, three of loss (one without a score), a broken one."""
    runs = tmp_path / "runs"
    patient = {"lr_scale": 0.5, "early_stopping": 2}
    write(runs / "job_0", best={"steps": 10, "f1": 70.5, "exact": 60.0}, lr_scale=0.5)
    write(runs / "job_1", best={"steps": 20, "f1": 90.25}, lr_scale=1)
    write(runs / "job_2", best={"steps": 15, "f1": 60.0}, last=15, **patient)
    write(runs / "job_3", best={"steps": 5, "f1": 50.0}, last=15, **patient)
    write(runs / "job_4", best={"steps": 5, "loss": 4.5}, metric="loss", lr_scale=0.5)
    write(runs / "job_5", best={"steps": 5, "loss": 2.25}, metric="loss", lr_scale=0.5)
    write(runs / "job_6", best=None, metric="loss", lr_scale=0.5)
    write(runs / "job_7", best=[], lr_scale=0.5)
    return runs


def test_a_report_of_training_has_the_windows_since_the_one_before():
    reports = [
        SimpleNamespace(
            totalBatches=steps,
            metrics={"avg_metrics": {"examples_per_second": speed}},
            endTime=f"2026-10-01T10:00:0{number}Z",
        )
        for number, (steps, speed) in enumerate([(1, 0.5), (4, 2.0), (4, 2.0), (6, None)])
    ]
    # One window is enough; a report without new steps, or without a speed, is left out.
    timed = list(_timed_reports(reports, batch=1))
    assert [(report.windows, report.seconds) for report in timed] == [(1, 2.0), (3, 1.5)]


def test_the_best_run_is_first(report, array):
    """By each run's own metric; beside it the keys in which the runs differ, and no others."""
    answer = report("runs", f"{array}/")

    rows = answer["tables"][0]["rows"]
    assert [row["run"] for row in rows] == [f"{array}/job_{n}" for n in (1, 0, 2, 3, 5, 4, 6)]
    assert [row["state"] for row in rows[:4]] == ["done", "done", None, "done early"]
    best = rows[0]
    differing_keys = {"hyperparameters.lr_scale", "hyperparameters.early_stopping"}
    assert {key for key in best if "." in key} == differing_keys
    expected = {
        "f1": 90.25,
        "exact": None,
        "loss": None,
        "steps": 20,
        "of": 20,
        "best at": 20,
        "starts": 1,
        "windows/s": 8.0,
        "hyperparameters.lr_scale": 1,
    }
    assert expected.items() <= best.items()
    assert best["worked h"] == pytest.approx(1 / 60)
    assert "cost" not in best
    assert rows[4]["loss"] == 2.25

    # The broken one is left out, and a note says why.
    (note,) = answer["notes"]
    assert note.startswith(f"{array}/job_7/metrics.json: best: ")


def test_a_terminal_shows_some_keys_and_counts_the_others(capsys, monkeypatch, tmp_path):
    for number in range(2):
        hparams = {f"scale_of_part_{part}": number + part for part in range(6)}
        write(tmp_path / f"job_{number}", best={"steps": 20, "f1": 50.0}, **hparams)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", Terminal())

    assert main(["runs", "job_0@g5.xlarge", "job_1"]) == 0

    text = re.sub(r"\x1b\[\d+m", "", sys.stdout.getvalue())
    assert "2 more config keys differ" in text
    assert "20/20" in text
    assert re.search(r" 0\.02 .* 50\.00 +\$0\.02 +0 +1 +2 +3 *\n", text)
    widths = [len(line) for line in text.splitlines() if "note" not in line]
    assert max(widths) <= 80
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert main(["runs", "job_0@g5.xlarge", "job_1", "--wide"]) == 0
    assert "config keys differ" not in sys.stdout.getvalue()

    # A file has all of them.
    monkeypatch.undo()
    assert main(["runs", f"{tmp_path}/job_0@g5.xlarge", f"{tmp_path}/job_1", "--csv"]) == 0
    head, *_ = capsys.readouterr().out.splitlines()
    assert "cost" in head
    assert "hyperparameters.scale_of_part_5" in head


def test_cost_takes_runs_and_folders_of_them(rows, array):
    """As --run does; a run is that, whatever lies below it. `runs` takes what `cost` takes."""
    bench = ROOT / "benchmarks" / "results" / "step-h100.json"
    (row,) = rows("runs", str(bench))
    assert row["windows/s"] > 100
    assert row["worked h"] is None
    assert row["of"] is None

    (row,) = rows("cost", f"{array}/job_0@g5.xlarge")
    assert row["cost"] == pytest.approx(1.006 / 60)

    write(array / "job_0" / "previous-1", best=None)
    first, *others = rows("cost", "--run", f"{array}/job_0", str(array))
    assert first["run"] == f"{array}/job_0"
    assert len(others) == 7


@pytest.mark.parametrize("path, words", FAULTS["runs"].items())
def test_a_path_without_a_run(refused, array, path, words):
    (array / "job_7" / "metrics.json").rename(array / "job_7" / "half.json")
    for name in ("0", "1"):
        folder = array / "broken" / name
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text('{"throughput": 1}')

    for command in ("runs", "cost"):
        assert words in refused(command, f"{array}/{path}")


def test_a_bucket_is_to_be_mounted_or_copied(refused):
    assert "mount the bucket" in refused("runs", "s3://bucket/runs")
