"""`scaling`: time, speed-up and efficiency at equal examples, beside the published table."""

import pytest
import yaml

from tests.conftest import ROOT
from tests.reports.conftest import write_run


def write(folder, slots, rate, steps, workers=0):
    """Write a pretraining of 16 windows per slot and step."""
    return write_run(
        folder,
        steps=steps,
        speed={"examples_per_second": rate, "slots": slots},
        size="tiny",
        num_workers=workers,
        global_batch_size=16 * slots,
    )


def measured(answer):
    return [row for row in answer["rows"] if row["source"] == "measured"]


def test_runs_of_equal_examples_are_a_series_per_number_of_loader_workers(report, tmp_path):
    write(tmp_path / "2-0", slots=2, rate=75.0, steps=100)
    write(tmp_path / "1-0", slots=1, rate=50.0, steps=200)
    write(tmp_path / "1-4", slots=1, rate=40.0, steps=200, workers=4)

    answer = report("scaling", str(tmp_path))

    rows = measured(answer)
    names = [f"tiny, a.json, {workers} loader workers" for workers in (0, 4)]
    sizes = [(row["series"], row["N"]) for row in rows]
    assert sizes == [(names[0], 1), (names[0], 2), (names[1], 1)]
    assert [row["seconds"] for row in rows] == pytest.approx([64, 3200 / 75, 80])
    assert [row["efficiency"] for row in rows] == pytest.approx([1, 0.75, 1])
    assert answer["notes"] == []
    # Below them stands the published study of equal examples.
    assert [row["N"] for row in answer["rows"][3:]] == [2, 4, 8, 16] * 2


def test_a_label_is_the_name_of_a_series(report, tmp_path, monkeypatch):
    """But of a folder whose own name has an equals sign it is a part."""
    monkeypatch.chdir(tmp_path)
    for name in ("plain", "seed=1"):
        write(tmp_path / name, slots=1, rate=50.0, steps=200)
    rows = measured(report("scaling", "mine=plain", "seed=1"))
    assert [row["series"] for row in rows] == ["mine", "tiny, a.json, 0 loader workers"]


def test_short_runs_and_those_of_other_lengths_have_no_efficiency(report, tmp_path):
    """131 % was printed of runs of 5 to 13 s, without a word."""
    write(tmp_path / "1", slots=1, rate=50.0, steps=200)
    write(tmp_path / "2", slots=2, rate=75.0, steps=200)
    write(tmp_path / "4", slots=4, rate=90.0, steps=50)
    write(tmp_path / "8", slots=8, rate=500.0, steps=25)
    answer = report("scaling", str(tmp_path))
    assert [row["efficiency"] for row in measured(answer)] == [1, None, 0.45, None]
    (note,) = answer["notes"]
    assert note.startswith("no efficiency, on other windows than the first of a series, or in less")
    assert "at N = 2; " in note
    assert note.endswith("at N = 8")


def test_beside_a_first_run_that_is_too_short_no_run_has_an_efficiency(report, tmp_path):
    write(tmp_path / "1", slots=1, rate=500.0, steps=200)
    write(tmp_path / "2", slots=2, rate=75.0, steps=100)
    answer = report("scaling", str(tmp_path))
    assert [row["efficiency"] for row in measured(answer)] == [None, None]
    assert "at N = 1; " in answer["notes"][0]


def test_printed_efficiencies_are_those_of_the_printed_throughputs(report):
    rows = report("scaling", "--published")["rows"]
    file = yaml.safe_load((ROOT / "cluster" / "data" / "published.yaml").read_text())
    for series in file["scaling"]:
        if "efficiency" in series:
            *_, last = (row for row in rows if row["series"] == series["series"])
            assert last["efficiency"] == pytest.approx(series["efficiency"], abs=0.006)
