"""`cost` of published runs and of folders; the budget; what all commands print."""

import csv
import io
import json
import resource
import subprocess

import pytest

from reports.__main__ import main
from tests.conftest import ROOT
from tests.fakes.records import Cluster, FakeRecords, Held, Ran, Tried
from tests.reports.conftest import write_run

STARTS = [  # of 130 and 235 s
    {"start": "2026-11-24T10:00:00.000+00:00", "end": "2026-11-24T10:02:10.000+00:00"},
    {"start": "2026-11-24T23:58:00.000+00:00", "end": "2026-11-25T00:01:55.000+00:00"},
]


BEST = {"steps": 60, "exact": 1.0, "f1": 2.0}


def test_the_published_table_comes_out_of_price_and_time(report):
    single, eight, many = report("cost", "--published")["rows"]

    assert single["dollars"] == pytest.approx(112.21, abs=0.005)
    assert eight["dollars"] == pytest.approx(4.7 * 24.48)
    assert round(many["dollars"]) == 47
    assert many["on demand"] == pytest.approx(8 * 0.8 * 24.48)
    assert round(many["faster"]) == 46
    assert round(many["cheaper"] * 100) == 58
    assert many["$/1,000 windows"] == pytest.approx(many["dollars"] / 264.396)


def test_published_costs_need_a_second_of_cpu_and_no_torch(real_python):
    code = (
        "import sys; from reports.__main__ import main;"
        "sys.exit(main(['cost', '--published']) or {'torch', 'pandas'} & set(sys.modules) or 0)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([real_python, "-c", code], cwd=ROOT, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert "$112.21" in done.stdout
    assert "$47.00" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime <= 1.0


def test_all_starts_of_a_run_are_priced(report, tmp_path):
    run = {"best": BEST, "steps": 120, "global_batch_size": 8}
    folder = write_run(tmp_path / "run", speed={"starts": STARTS}, **run)
    (row,) = report("cost", f"{folder}@g5.xlarge")["rows"]
    assert row["starts"] == 2
    assert row["dollars"] == pytest.approx(365 / 3600 * 1.006)
    assert row["$/1,000 windows"] == pytest.approx(row["dollars"] / 0.96)
    assert (row["exact"], row["f1"], row["windows/s"]) == (1.0, 2.0, 8.0)

    # As many machines as have its slots; without times of its starts, what the last one measured.
    speed = {"slots": 9, "checkpoint_seconds": [1, 2]}
    folder = write_run(tmp_path / "run", speed=speed)
    (row,) = report("cost", f"{folder}@p3.16xlarge:spot")["rows"]
    assert row["dollars"] == pytest.approx(2 * 63 / 3600 * 7.344)
    assert row["on demand"] == pytest.approx(2 * 63 / 3600 * 24.48)


def test_a_real_run_is_read(report, finished):
    """Validation and start-up are in it: the file's training seconds are a part of the hours."""
    folder = finished / "out"  # what the real entry point leaves behind
    speed = json.loads((folder / "metrics.json").read_text())["throughput"]
    (row,) = report("cost", str(folder))["rows"]
    seconds = speed["training_seconds"] + sum(speed["checkpoint_seconds"])
    assert seconds < row["hours"] * 3600 < seconds + 120
    assert row["dollars"] is None


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("cost", "nothing to report"),
        ("moon", "invalid choice"),
        ("cost --published --budget -1", "--budget -1: expected a number from"),
        ("cost --published --by moon", "invalid choice"),
        ("cost --published --json --csv", "not allowed with"),
        ("cost --published --html /no/such/folder/page.html", "cannot write there"),
        ("cost --experiment seven", "invalid int value"),
        ("cost --experiment 7 --master http://127.0.0.1:9", "no master answers"),
        ("cost /no/such/run", "/no/such/run: no run in it (FileNotFoundError: "),
        ("runs RUN@p3.2xlarg", "did you mean 'p3.2xlarge'?"),
        ("runs RUN@p3.2xlarge:free", "expected INSTANCE"),
        ("cost RUN@p3.2xlarge --region eu-central-9", "no such region"),
    ],
)
def test_a_mistake_is_one_line(refused, tmp_path, words, line):
    words = words.replace("RUN", write_run(tmp_path / "run"))
    assert line in refused(*words.split())


ODD = Ran([Tried([Held("9.t.0", "12:00", "12:30", ["i-1"])])], name="=1+1\x1b[2J <b>", user="é")


def test_csv_and_json_are_numbers_and_nothing_is_obeyed(capsys, tmp_path):
    """Neither by a terminal, nor by a spreadsheet, nor by a browser."""
    page = tmp_path / "cost.html"
    with FakeRecords(Cluster({9: ODD})) as master:
        arguments = ["cost", "--experiment", "9", "--master", master.url]
        assert main([*arguments, "--csv", "--html", str(page)]) == 0
        (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert main(arguments) == 0
        table = capsys.readouterr().out
    assert (row["experiment"], row["name"]) == ("9", "'=1+1\\x1b[2J <b>")
    assert float(row["dollars"]) == pytest.approx(0.5 * 7.344)
    assert "=1+1\\x1b[2J <b>" in table
    assert "\x1b" not in table
    _, _, head, rule, body, *notes = table.splitlines()
    assert len({len(line) for line in (head, rule, body)}) == 1  # a line for each row
    assert all(note.startswith("note: ") for note in notes)
    text = page.read_text(encoding="utf-8")
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert "$3.67" in text
    assert "http" not in text
    # A page of ours is written again; another file is not replaced.
    with FakeRecords(Cluster({9: ODD})) as master:
        assert main([*arguments[:-1], master.url, "--html", str(page)]) == 0
        page.write_text("mine")
        assert main([*arguments[:-1], master.url, "--html", str(page)]) == 2
        assert "cost.html: it would be replaced" in capsys.readouterr().err
    assert page.read_text() == "mine"
