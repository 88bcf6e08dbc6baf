"""`scaling`: time, speed-up and efficiency at equal examples, beside the published table."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.fakes.recorded import Cluster, Held, Kept, Ran
from tests.reports.conftest import UNTIL


def write_run(folder: Path, slots: int, workers: int, speed: float, steps: int) -> None:
    """Write the files of a pretraining of 16 windows per slot and step."""
    hparams = {"size": "tiny", "num_workers": workers, "global_batch_size": 16 * slots}
    throughput = {
        "examples_per_second": speed,
        "training_seconds": 1.0,
        "training_windows": steps * 16 * slots,
        "slots": slots,
    }
    folder.mkdir(parents=True)
    # A file of one slot, started on more of them by torchrun.
    config = {"hyperparameters": hparams, "resources": {"slots_per_trial": 1}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    metrics = {"last": {"steps": steps}, "throughput": throughput}
    (folder / "metrics.json").write_text(json.dumps(metrics))


def measured(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["source"] == "measured"]


def test_runs_of_equal_examples_are_a_series_per_number_of_loader_workers(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    write_run(tmp_path / "2-0", slots=2, workers=0, speed=150.0, steps=100)
    write_run(tmp_path / "1-0", slots=1, workers=0, speed=100.0, steps=200)
    write_run(tmp_path / "1-4", slots=1, workers=4, speed=80.0, steps=200)
    write_run(tmp_path / "2-4", slots=2, workers=4, speed=152.0, steps=100)

    answer = report("scaling", str(tmp_path))

    rows = measured(answer["tables"][0]["rows"])
    assert [(row["series"].split(", ")[:2], row["N"]) for row in rows] == [
        (["albert-tiny", "0 loader workers"], 1),
        (["albert-tiny", "0 loader workers"], 2),
        (["albert-tiny", "4 loader workers"], 1),
        (["albert-tiny", "4 loader workers"], 2),
    ]
    assert [row["windows"] for row in rows] == [3200] * 4
    assert [row["seconds"] for row in rows] == pytest.approx([32, 3200 / 150, 40, 3200 / 152])
    assert [row["speed-up"] for row in rows] == pytest.approx([1, 1.5, 1, 1.9])
    assert [row["efficiency"] for row in rows] == pytest.approx([1, 0.75, 1, 0.95])
    assert answer["notes"] == []


def test_the_published_table_stands_beside_them_with_its_printed_seconds(
    rows: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    write_run(tmp_path / "run", slots=1, workers=0, speed=100.0, steps=200)

    published = rows("scaling", str(tmp_path / "run"))[1:]

    assert {row["source"] for row in published} == {"published"}
    assert [row["N"] for row in published] == [2, 4, 8, 16] * 2
    file = yaml.safe_load((ROOT / "cluster" / "facts" / "published.yaml").read_text())
    (printed,) = [row for row in file["scaling"] if "seconds" in row]
    seconds = [row["seconds"] for row in published if row["series"] == printed["series"]]
    assert seconds == pytest.approx(list(printed["seconds"].values()), rel=1e-5)


def test_runs_of_other_lengths_are_named_in_one_line_and_have_no_efficiency(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    write_run(tmp_path / "a", slots=1, workers=0, speed=100.0, steps=200)
    write_run(tmp_path / "b", slots=2, workers=0, speed=150.0, steps=200)
    write_run(tmp_path / "c", slots=4, workers=0, speed=300.0, steps=50)
    write_run(tmp_path / "d", slots=8, workers=0, speed=500.0, steps=50)

    answer = report("scaling", str(tmp_path))

    rows = measured(answer["tables"][0]["rows"])
    assert [row["efficiency"] for row in rows] == [1, None, 0.75, None]
    assert answer["notes"] == [
        f"not of equal examples, so without an efficiency: {tmp_path}/b (6,400 windows, not "
        f"3,200), {tmp_path}/d (6,400 windows, not 3,200)"
    ]


def test_experiments_of_a_master_are_read_too(bill: Callable[..., dict[str, Any]]) -> None:
    """The configs of the page: size, loader workers and batch are hyperparameters."""
    experiments = {}
    for number, slots, speed in ((1, 8, 80.0), (2, 16, 120.0)):
        hparams = {"size": "base", "num_workers": 12, "global_batch_size": 16 * slots}
        steps = 1600 // slots
        trial = Kept(
            [Held(f"{number}.t.0", "12:00", "13:00", [f"i-{node}" for node in range(slots // 8)])],
            reports=[("12:30", steps, speed)],
            steps=steps,
            hparams=hparams,
        )
        data = {"shards": "s3://my-bucket/albert-shards"}
        experiments[number] = Ran([trial], slots, hyperparameters=hparams, data=data)
    lives = [("i-0", "11:50", "13:10"), ("i-1", "11:50", "13:10")]
    cluster = Cluster(experiments, instances=lives)

    answer = bill(cluster, *UNTIL, "--experiment", "1", "2", command="scaling")

    rows = measured(answer["tables"][0]["rows"])
    name = "albert-base on p3.16xlarge, 12 loader workers, windows/s over slots"
    assert [(row["series"], row["N"]) for row in rows] == [(name, 8), (name, 16)]
    assert [row["seconds"] for row in rows] == pytest.approx([25600 / 80, 25600 / 120])
    assert [row["efficiency"] for row in rows] == pytest.approx([1, 0.75])


def test_answers_among_the_runs_are_passed_over_and_named(
    report: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """In the folder of the runs, and in a shell's list of what is in it."""
    write_run(tmp_path / "1", slots=1, workers=0, speed=100.0, steps=200)
    write_run(tmp_path / "2", slots=2, workers=0, speed=150.0, steps=100)
    answers = tmp_path / "answers"
    answers.mkdir()
    (answers / "predictions.json").write_text("{}")
    for paths in ([tmp_path], sorted(tmp_path.iterdir())):
        answer = report("scaling", *map(str, paths))
        assert [row["N"] for row in measured(answer["tables"][0]["rows"])] == [1, 2]
        (note,) = answer["notes"]
        assert note.startswith(f"{answers}: answers, and not a run: passed over")


def test_answers_alone_and_a_path_that_is_not_there_are_refused(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / "predictions.json").write_text("{}")
    write_run(tmp_path / "run", slots=1, workers=0, speed=100.0, steps=200)
    for command in ("scaling", "runs"):
        assert "not a run" in refused(command, str(tmp_path / "answers"))
        missing = str(tmp_path / "no-run")
        assert "cannot read it" in refused(command, str(tmp_path / "run"), missing)
