"""`cost` of local runs and of benchmark results: what is counted, what is not compared."""

import json
import pathlib

import pytest
import yaml

from reports.__main__ import main
from tests.conftest import ROOT
from tests.reports.conftest import refused
from tests.reports.test_cost import TODAY, benchmark, rows


def test_a_real_local_run_is_priced(capsys, finished):
    """Validation and start-up are in it: the file's training seconds are a part of the hours."""
    folder = finished / "out"  # what the real entry point leaves behind
    metrics = json.loads((folder / "metrics.json").read_text())
    (row,) = rows(capsys, "cost", "--run", f"{folder}@p3.2xlarge:spot")
    speed = metrics["throughput"]
    seconds = speed["training_seconds"] + sum(speed["checkpoint_seconds"])
    assert seconds < row["worked h"] * 3600 < seconds + 120
    assert row["cost"] == pytest.approx(row["worked h"] * 0.918)
    assert row["on demand"] == pytest.approx(row["worked h"] * 3.06)
    assert row["windows/s"] == pytest.approx(speed["examples_per_second"])
    assert (row["EM"], row["F1"]) == (metrics["best"]["exact"], metrics["best"]["f1"])
    (free,) = rows(capsys, "cost", "--run", str(folder))
    assert free["cost"] is None and free["worked h"] == row["worked h"]
    both = rows(capsys, "cost", "--published", "--run", str(folder))
    assert both[3]["run"].endswith(" *") and both[3]["faster"] is None  # 1475x and 100 % before


def local_run(folder: pathlib.Path) -> pathlib.Path:
    """Two starts, of 130 and 235 s; 120 steps of 8 windows."""
    spans = ("24T10:00:00", "24T10:02:10"), ("24T23:58:00", "25T00:01:55")
    times = [[f"2026-11-{moment}.000+00:00" for moment in span] for span in spans]
    starts = [{"start": start, "end": end} for start, end in times]
    throughput = {"examples_per_second": 8.0, "tokens_per_second": 1600.0, "training_windows": 480}
    throughput |= {"training_seconds": 60.0, "checkpoint_seconds": [1, 2], "starts": starts}
    content = {"best": {"exact": 1.0, "f1": 2.0}, "last": {"steps": 120}, "throughput": throughput}
    (folder / "metrics.json").write_text(json.dumps(content))
    config = {"hyperparameters": {"global_batch_size": 8, "model": "x/albert-base-v2"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def test_all_starts_of_a_local_run_count(capsys, tmp_path):
    text = f"{local_run(tmp_path)}@g5.xlarge"
    (row,) = rows(capsys, "cost", "--run", text)
    assert row["worked h"] * 3600 == pytest.approx(130 + 235)
    assert row["elapsed h"] * 3600 == pytest.approx(14 * 3600 + 115)
    assert (row["stops"], row["kinds"]) == (1, "1 restarted")
    assert row["cost"] == pytest.approx(365 / 3600 * 1.006)
    assert row["$/1,000 windows"] == pytest.approx(row["cost"] / 0.96)
    (row,) = rows(capsys, "cost", "--run", text, "--tokens")
    assert row["tokens/s"] == 1600 and row["$/1M tokens"] == pytest.approx(row["cost"] / 0.192)
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    del metrics["throughput"]["starts"]  # as runs were recorded before
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    (row,) = rows(capsys, "cost", "--run", text)
    assert row["worked h"] * 3600 == pytest.approx(63) and row["stops"] is None


PRETRAINING = {"shape": "xxlarge", "workload": "pretraining"}


@pytest.mark.parametrize(
    "changes, instance, said",
    [
        ({}, "p5en.48xlarge", ""),
        ({"settings": {"shape": "small"}}, "p5en.48xlarge", "another model"),
        ({"device": {"name": "AMD EPYC"}}, "p5en.48xlarge", "measured on AMD EPYC"),
        ({}, "p5.48xlarge", "measured on NVIDIA H200, not p5.48xlarge"),
        ({"settings": PRETRAINING}, "p5en.48xlarge", "another data"),
    ],
)
def test_a_benchmark_is_compared_with_what_is_like_it(capsys, tmp_path, changes, instance, said):
    path = benchmark(tmp_path / "bench.json", 50.0, **{"slots": 8, **changes})
    run = ["--run", f"{path}@{instance}"]
    assert main(["cost", "--published", *run, *TODAY, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    row = found["tables"][0]["rows"][3]
    assert (row["faster"] is None) == (row["cheaper"] is None) == bool(said)
    assert row["run"].endswith(" *") == bool(said)
    assert any(said in note for note in found["notes"] if note.startswith(path)) or not said
    if not said:  # projected to the work
        (row,) = rows(capsys, "cost", *run, "--windows", "90000")
        assert row["worked h"] == pytest.approx(0.5) and row["cost"] == pytest.approx(31.648)


@pytest.mark.parametrize("stage", ["lm", "finetune", "predict", "serve"])
def test_a_benchmark_that_is_no_training_is_refused(capsys, stage):
    file = ROOT / "benchmarks" / "results" / f"{stage}.json"
    assert "is no training" in refused(capsys, "cost", "--run", f"{file}@p5en.48xlarge")
