"""`cost` of local runs and of benchmark results: what is counted, what is not compared."""

import json
import os
import pathlib
import struct

import pytest
import yaml

from reports.__main__ import main
from tests.conftest import ROOT
from tests.reports.test_cost import TODAY, benchmark, refused, rows


@pytest.fixture(scope="module")
def run_folder(finished):
    """What the real entry point leaves behind."""
    return finished / "out"


def test_a_real_local_run_is_priced(capsys, run_folder):
    """Validation and start-up are in it: the file's training seconds are a part of the hours."""
    metrics = json.loads((run_folder / "metrics.json").read_text())
    (row,) = rows(capsys, "cost", "--run", f"{run_folder}@p3.2xlarge:spot")
    speed = metrics["throughput"]
    seconds = speed["training_seconds"] + sum(speed["checkpoint_seconds"])
    assert seconds < row["worked h"] * 3600 < seconds + 120
    assert row["cost"] == pytest.approx(row["worked h"] * 0.918)
    assert row["on demand"] == pytest.approx(row["worked h"] * 3.06)
    assert row["windows/s"] == pytest.approx(speed["examples_per_second"])
    assert (row["EM"], row["F1"]) == (metrics["best"]["exact"], metrics["best"]["f1"])
    (free,) = rows(capsys, "cost", "--run", str(run_folder))
    assert free["cost"] is None and free["worked h"] == row["worked h"]
    both = rows(capsys, "cost", "--published", "--run", str(run_folder))
    assert both[3]["run"].endswith(" *") and both[3]["faster"] is None  # 1475x and 100 % before


def event_file(path: pathlib.Path, *times: float) -> None:
    """What TensorBoard's writer leaves: records whose first field is the Unix time."""
    events = [b"\x09" + struct.pack("<d", time) + b"\x10\x05" for time in times]
    content = (struct.pack("<QI", len(e), 0) + e + struct.pack("<I", 0) for e in events)
    path.write_bytes(b"".join(content))


def local_run(folder: pathlib.Path) -> pathlib.Path:
    """Two starts, of 100 and 200 s between their first and last report; 120 steps of 8 windows."""
    (folder / "tensorboard").mkdir()
    event_file(folder / "tensorboard" / "events.out.tfevents.1", 10_000, 10_050, 10_100)
    event_file(folder / "tensorboard" / "events.out.tfevents.2", 20_000, 20_200)
    throughput = {"examples_per_second": 8.0, "tokens_per_second": 1600.0, "training_windows": 480}
    throughput |= {"training_seconds": 60.0, "checkpoint_seconds": [1.0, 2.0]}
    content = {"best": {"exact": 1.0, "f1": 2.0}, "last": {"steps": 120}, "throughput": throughput}
    (folder / "metrics.json").write_text(json.dumps(content))
    config = {"hyperparameters": {"global_batch_size": 8, "model": "x/albert-base-v2"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    os.utime(folder / "config.yaml", (19_970, 19_970))  # 30 s before the first report
    os.utime(folder / "metrics.json", (20_205, 20_205))  # after the last checkpoint
    return folder


def test_all_starts_of_a_local_run_count(capsys, tmp_path):
    text = f"{local_run(tmp_path)}@g5.xlarge"
    (row,) = rows(capsys, "cost", "--run", text)
    assert row["worked h"] * 3600 == pytest.approx(100 + 200 + 2 * 30 + 5)
    assert row["elapsed h"] * 3600 == pytest.approx(10_235)
    assert (row["stops"], row["kinds"]) == (1, "1 restarted")
    assert row["cost"] == pytest.approx(365 / 3600 * 1.006)
    assert row["$/1,000 windows"] == pytest.approx(row["cost"] / 0.96)
    (row,) = rows(capsys, "cost", "--run", text, "--tokens")
    assert row["tokens/s"] == 1600 and row["$/1M tokens"] == pytest.approx(row["cost"] / 0.192)
    os.utime(tmp_path / "config.yaml")  # copied since: its time says nothing
    (row,) = rows(capsys, "cost", "--run", text)
    assert row["worked h"] * 3600 == pytest.approx(305)


def test_a_benchmark_is_projected_to_the_work(capsys, tmp_path):
    path = benchmark(tmp_path / "bench.json", 50.0, slots=8)
    (row,) = rows(capsys, "cost", "--run", f"{path}@p5en.48xlarge", "--windows", "90000")
    assert row["worked h"] == pytest.approx(0.5) and row["cost"] == pytest.approx(31.648)


FORWARD = {"one_forward": {"sequences_per_second": {"median": 50.0}}}
UNLIKE = {
    "nothing else": ({}, "p5en.48xlarge", ""),
    "another model": ({"settings": {"shape": "small"}}, "p5en.48xlarge", "another model"),
    "another device": ({"device": {"name": "AMD EPYC"}}, "p5en.48xlarge", "measured on AMD EPYC"),
    "another GPU": ({}, "p5.48xlarge", "measured on NVIDIA H200, not p5.48xlarge"),
    "other data": ({"stage": "pretrain", "results": FORWARD}, "p5en.48xlarge", "another data"),
}


@pytest.mark.parametrize("name", UNLIKE)
def test_unlike_things_are_not_compared(capsys, tmp_path, name):
    changes, instance, said = UNLIKE[name]
    path = benchmark(tmp_path / "bench.json", 50.0, **changes)
    arguments = ["cost", "--published", "--run", f"{path}@{instance}", *TODAY, "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    row = found["tables"][0]["rows"][3]
    assert (row["faster"] is None) == (row["cheaper"] is None) == bool(said)
    assert row["run"].endswith(" *") == bool(said)
    assert any(said in note for note in found["notes"] if note.startswith(path)) or not said


@pytest.mark.parametrize("stage", ["decode", "loader", "featurize", "parity", "scaling"])
def test_a_benchmark_that_is_no_training_is_refused(capsys, stage):
    """decode.json was priced at $0.03 for the training of 264,396 windows."""
    file = ROOT / "benchmarks" / "results" / f"{stage}.json"
    assert "is no training" in refused(capsys, "cost", "--run", f"{file}@p5en.48xlarge")
