"""`runs`, and the runs that commands find in folders and buckets."""

import json
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from detalbert import bucket
from reports.__main__ import main
from tests.conftest import ROOT
from tests.fakes import s3 as fake_s3
from tests.reports.test_cost import Terminal
from tests.reports.test_faults import FAULTS, SPEED


def write(folder: pathlib.Path, best: Any, last: int = 20, metric: str = "f1", **keys: Any) -> None:
    """Write what a run of 20 steps leaves, of which `last` are done."""
    folder.mkdir(parents=True)
    content = {"best": best, "last": {"steps": last}, "throughput": SPEED}
    (folder / "metrics.json").write_text(json.dumps(content))
    keys = {"global_batch_size": 8, "max_steps": 20, "validation_period": 5, **keys}
    searcher = {"metric": metric, "smaller_is_better": metric == "loss"}
    config = {"hyperparameters": keys, "searcher": searcher, "data": {"train": ["a"], "seed": 1}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


@pytest.fixture
def array(tmp_path: pathlib.Path) -> pathlib.Path:
    """A job array's runs: four of f1, three of loss (one without a score), a broken one."""
    runs = tmp_path / "runs"
    write(runs / "job_0", {"steps": 10, "f1": 70.5, "exact": 60.0}, lr_scale=0.5)
    write(runs / "job_1", {"steps": 20, "f1": 90.25}, lr_scale=1)
    write(runs / "job_2", {"steps": 15, "f1": 60.0}, 15, lr_scale=0.5, early_stopping=2)
    write(runs / "job_3", {"steps": 5, "f1": 50.0}, 15, lr_scale=0.5, early_stopping=2)
    write(runs / "job_4", {"steps": 5, "loss": 4.5}, metric="loss", lr_scale=0.5)
    write(runs / "job_5", {"steps": 5, "loss": 2.25}, metric="loss", lr_scale=0.5)
    write(runs / "job_6", None, metric="loss", lr_scale=0.5)
    write(runs / "job_7", [], lr_scale=0.5)
    return runs


def test_the_best_run_is_first(report, array):
    """By each run's own metric; beside it the keys in which the runs differ, and no others."""
    found = report("runs", f"{array}/")
    rows = found["tables"][0]["rows"]
    assert [row["run"] for row in rows] == [f"{array}/job_{n}" for n in (1, 0, 2, 3, 5, 4, 6)]
    assert [row["state"] for row in rows[:4]] == ["done", "done", None, "done early"]
    keys = {"hyperparameters.lr_scale", "hyperparameters.early_stopping"}
    assert {key for key in rows[0] if "." in key} == keys
    wanted = {"f1": 90.25, "exact": None, "loss": None, "steps": 20, "of": 20, "best at": 20}
    wanted |= {"starts": 1, "windows/s": 8.0, "hyperparameters.lr_scale": 1}
    assert wanted.items() <= rows[0].items() and rows[4]["loss"] == 2.25
    assert rows[0]["worked h"] == pytest.approx(1 / 60) and "cost" not in rows[0]
    (note,) = found["notes"]
    assert note.startswith(f"{array}/job_7/metrics.json: best: ")


def test_a_terminal_shows_some_keys_and_counts_the_others(capsys, monkeypatch, tmp_path):
    for n in range(2):
        keys = {f"scale_of_part_{k}": n + k for k in range(6)}
        write(tmp_path / f"job_{n}", {"steps": 20, "f1": 50.0}, **keys)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert main(["runs", "job_0@g5.xlarge", "job_1"]) == 0
    text = re.sub(r"\x1b\[\d+m", "", sys.stdout.getvalue())
    assert "2 more config keys differ" in text and "20/20" in text
    assert re.search(r" 0\.02 .* 50\.00 +\$0\.02 +0 +1 +2 +3 *\n", text)
    assert max(len(line) for line in text.splitlines() if "note" not in line) <= 80
    monkeypatch.undo()
    assert main(["runs", f"{tmp_path}/job_0@g5.xlarge", f"{tmp_path}/job_1", "--csv"]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert "cost" in head and "hyperparameters.scale_of_part_5" in head


def test_cost_takes_runs_and_folders_of_them(rows, array):
    """As --run does; a run is that, whatever lies below it. `runs` takes what `cost` takes."""
    bench = ROOT / "benchmarks" / "results" / "step-h100.json"
    (row,) = rows("runs", str(bench))
    assert row["windows/s"] > 100 and row["worked h"] is row["of"] is None
    (row,) = rows("cost", f"{array}/job_0@g5.xlarge")
    assert row["cost"] == pytest.approx(1.006 / 60)
    write(array / "job_0" / "previous-1", None)
    one, *others = rows("cost", "--run", f"{array}/job_0", str(array))
    assert one["run"] == f"{array}/job_0" and len(others) == 7


@pytest.mark.parametrize("path, said", FAULTS["runs"].items())
def test_a_path_without_a_run(refused, array, path, said):
    (array / "job_7" / "metrics.json").rename(array / "job_7" / "half.json")
    for n in range(2):
        (array / "broken" / f"{n}").mkdir(parents=True)
        (array / "broken" / f"{n}" / "metrics.json").write_text('{"throughput": 1}')
    for command in ("runs", "cost"):
        assert said in refused(command, f"{array}/{path}")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of moto, which has s3://bucket."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with fake_s3.bucket(monkeypatch) as (client, _):
        yield client


def test_runs_in_a_bucket(report, rows, refused, monkeypatch, array, s3):
    """The table of the folder; nothing else is downloaded; errors name the address."""
    (array / "job_0" / "predictions.json").touch()
    write(array / "job_0" / "previous-1", None)
    for file in (file for file in array.glob("**/*") if file.is_file()):
        s3.upload_file(str(file), "bucket", str(file.relative_to(array.parent)))
    arrived, download = list[str](), bucket.download

    def watched(address: str, folder: pathlib.Path, wanted: Any) -> None:
        download(address, folder, wanted)
        arrived.extend(str(file.relative_to(folder)) for file in folder.glob("**/*.*"))

    monkeypatch.setattr(bucket, "download", watched)
    there = json.dumps(report("runs", "s3://bucket/runs/"))
    assert there.replace("s3://bucket/runs", str(array)) == json.dumps(report("runs", str(array)))
    files = {f"job_{n}/{name}" for n in range(8) for name in ("config.yaml", "metrics.json")}
    assert {*arrived} == files
    (row,) = rows("cost", "s3://bucket/runs/job_0@g5.xlarge")
    assert row["run"] == "s3://bucket/runs/job_0" and row["cost"] == pytest.approx(1.006 / 60)
    for address in ("s3://bucket/runs/job_7", "s3://bucket/runs/job", "s3://other", "ftp://bucket"):
        assert f" {address}" in refused("runs", address)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert refused("runs", "s3://bucket/runs").startswith("reports: unavailable: s3://")
