"""`cost` and `scaling`: published figures, local runs, benchmarks; what is not compared."""

import io
import json
import pathlib
import re
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest
import yaml

from reports.__main__ import main
from reports.report import Report, Table, fill_template
from reports.run import SAME_WORK, Run, Work
from tests.conftest import ROOT
from tests.reports.conftest import TODAY


def test_the_published_table_comes_out_of_price_and_time(capsys, rows):
    single, eight, many = rows("cost", "--published")

    assert [row["slots"] for row in (single, eight, many)] == [1, 8, 64]
    names = [row["run"].removesuffix(" *") for row in (single, eight, many)]
    assert names == ["published, 1 GPU", "published, 8 GPUs", "published, 64 GPUs"]
    assert single["cost"] == pytest.approx(112.21, abs=0.005)
    assert single["low"] is None
    assert eight["cost"] == pytest.approx(4.7 * 24.48)
    assert round(many["cost"]) == 47
    assert round(many["faster"]) == 46
    assert round(many["cheaper"] * 100) == 58
    assert round(many["windows/s"] / single["windows/s"]) == 46
    assert many["EM"] == 86.24
    assert many["F1"] == 89.06
    assert many["$/1,000 windows"] == pytest.approx(many["cost"] / 264.396)
    assert many["low"] == pytest.approx(0.8 * 8 * 2.67)
    assert many["on demand"] == pytest.approx(0.8 * 8 * 24.48)

    # As a text, and with another baseline.
    assert main(["cost", "--published", *TODAY]) == 0
    text = capsys.readouterr().out
    for cell in ("112.21  112.21", "17.09-47.00", "45.84x", "58%"):
        assert cell in text
    single, _, many = rows("cost", "--published", "--baseline", "published, 64 GPUs")
    assert many["faster"] == 1
    assert single["cheaper"] == pytest.approx(1 - 112.2102 / 47.0016)


def benchmark(path: pathlib.Path, speed: float, slots: int = 1, **changes: object) -> str:
    """Write the result of a benchmark's step, and return its path."""
    result = {
        "stage": "step",
        "device": {"name": "NVIDIA H200", "count": slots},
        "settings": {"shape": "xxlarge", "tokens_per_window": 175.0},
        "results": {"ours": {"windows_per_second": {"median": speed}}},
    }
    path.write_text(json.dumps({**result, **changes}))
    return str(path)


def test_a_budget_ends_with_3(capsys):
    assert main(["cost", "--published", "--budget", "275", *TODAY]) == 0
    assert capsys.readouterr().err == ""

    assert main(["cost", "--published", "--budget", "100", *TODAY]) == 3
    out, err = capsys.readouterr()
    assert err == "reports: $274.27 is $174.27 over the budget of $100.00\n"
    assert "112.21" in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command, words", [("cost", "47.00"), ("scaling", "41.8%")])
def test_a_terminal_of_80_columns_is_enough(monkeypatch, command, words):
    """And nothing is cut off on a narrower one; with --wide no line is folded."""

    def shown(columns: int, *flags: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert main([command, "--published", *flags, *TODAY]) == 0
        text = re.sub(r"\x1b\[\d+m", "", sys.stdout.getvalue())
        return [line for line in text.splitlines() if not line.startswith("note: ")]

    for columns in (80, 60):
        lines = shown(columns)
        text = "\n".join(lines)
        assert max(map(len, lines)) <= columns
        assert words in text
        assert "\u2026" not in text
    if command == "cost":
        assert "published, 64 GPUs  8 x p3.16" in "\n".join(shown(80, "--wide"))


def test_markdown_has_a_row_per_run(capsys):
    assert main(["cost", "--published", "--markdown", *TODAY]) == 0

    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    (cells,) = (cells for cells in lines if cells[0] == "| published, 64 GPUs")
    assert cells[1:7] == ["8 x p3.16xlarge", "64", "spot", "92.75", "0.80", "0.80"]

    # Text that is Markdown itself.
    table = Table("t", frame=pd.DataFrame({"run": [r"a\|b"]}))
    report = Report("t", tables=[table], method=[], notes=[])
    page = fill_template(ROOT / "reports" / "report.md.j2", report=report)
    assert page.endswith("## t\n\n| run |\n| --- |\n| a\\\\|b |\n")


def test_without_a_library_the_pip_command_is_said(refused, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("reports.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert "pip install -r reports/requirements.txt" in refused("cost", "--published")


def test_no_command_imports_torch(real_python):
    """They run where the requirements of reports/ are installed and those of training are not."""
    code = (
        "import sys; from reports.__main__ import main;"
        "run = ['runs', 'benchmarks/results/step-h100.json'];"
        "sys.exit(any(map(main, (['cost', '--published'], ['scaling', '--published'], run)))"
        " or {'torch', 'transformers'} & set(sys.modules) or 0)"
    )
    done = subprocess.run([real_python, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_printed_efficiencies_are_those_of_the_printed_throughputs(rows):
    table = pd.DataFrame(rows("scaling", "--published"))

    published = yaml.safe_load((ROOT / "cluster" / "facts" / "published.yaml").read_text())
    for row in published["scaling"]:
        if "efficiency" in row:
            last = table[table["series"] == row["series"]].iloc[-1]
            assert last["efficiency"] == pytest.approx(row["efficiency"], abs=0.006)

    without_loader = table["series"].str.contains("no loader")
    efficiencies = table.loc[without_loader, "efficiency"].tolist()
    computed = [1, 0.84043, 0.62559, 0.41724]  # printed: 41.7 %, computed 41.8 %
    assert efficiencies == pytest.approx(computed, abs=1e-3)


def test_scaling_puts_a_measured_series_beside_the_published(rows, refused, tmp_path):
    eight = benchmark(tmp_path / "8.json", speed=72.0, slots=8)
    one = benchmark(tmp_path / "1.json", speed=10.0, slots=1)
    measured = ["--run", f"ours={eight}", "--run", f"ours={one}"]

    table = rows("scaling", "--published", *measured)

    ours = [row for row in table if row["series"] == "ours"]
    assert [row["efficiency"] for row in ours] == pytest.approx([1.0, 0.9])
    assert {row["source"] for row in table} == {"measured", "published"}
    line = refused("scaling", *measured, "--run", f"ours={one}")
    assert "two throughputs for 1" in line


def test_a_real_local_run_is_priced(rows, finished):
    """Validation and start-up are in it: the file's training seconds are a part of the hours."""
    folder = finished / "out"  # what the real entry point leaves behind
    metrics = json.loads((folder / "metrics.json").read_text())

    (row,) = rows("cost", "--run", f"{folder}@p3.2xlarge:spot")

    speed = metrics["throughput"]
    seconds = speed["training_seconds"] + sum(speed["checkpoint_seconds"])
    assert seconds < row["worked h"] * 3600 < seconds + 120
    assert row["cost"] == pytest.approx(row["worked h"] * 0.918)
    assert row["on demand"] == pytest.approx(row["worked h"] * 3.06)
    assert row["windows/s"] == pytest.approx(speed["examples_per_second"])
    assert row["EM"] == metrics["best"]["exact"]
    assert row["F1"] == metrics["best"]["f1"]

    # Without a machine it has hours and no dollars.
    (unpriced,) = rows("cost", "--run", str(folder))
    assert unpriced["cost"] is None
    assert unpriced["worked h"] == row["worked h"]

    # Beside the published runs it is not compared: that was 1475x and 100 %.
    *_, row = rows("cost", "--published", "--run", str(folder))
    assert row["run"].endswith(" *")
    assert row["faster"] is None


STARTS = [  # of 130 and 235 s
    {"start": "2026-11-24T10:00:00.000+00:00", "end": "2026-11-24T10:02:10.000+00:00"},
    {"start": "2026-11-24T23:58:00.000+00:00", "end": "2026-11-25T00:01:55.000+00:00"},
]


def test_all_starts_of_a_local_run_count(rows, tmp_path):
    """Two starts; 120 steps of 8 windows."""
    throughput = {
        "examples_per_second": 8.0,
        "tokens_per_second": 1600.0,
        "training_windows": 480,
        "training_seconds": 60.0,
        "checkpoint_seconds": [1, 2],
    }
    config = {"hyperparameters": {"global_batch_size": 8, "model": "x/albert-base-v2"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))

    def cost(speed: dict[str, Any], *flags: str) -> dict[str, Any]:
        metrics = {"best": {"exact": 1.0, "f1": 2.0}, "last": {"steps": 120}, "throughput": speed}
        (tmp_path / "metrics.json").write_text(json.dumps(metrics))
        (row,) = rows("cost", "--run", f"{tmp_path}@g5.xlarge", *flags)
        return row

    row = cost({**throughput, "starts": STARTS})
    assert row["worked h"] * 3600 == pytest.approx(130 + 235)
    assert row["elapsed h"] * 3600 == pytest.approx(14 * 3600 + 115)
    assert row["stops"] == 1
    assert row["kinds"] == "1 restarted"
    assert row["cost"] == pytest.approx(365 / 3600 * 1.006)
    assert row["$/1,000 windows"] == pytest.approx(row["cost"] / 0.96)

    row = cost({**throughput, "starts": STARTS}, "--tokens")
    assert row["$/1M tokens"] == pytest.approx(row["cost"] / 0.192)
    assert row["tokens/s"] == 1600

    row = cost(throughput)  # as runs were recorded before
    assert row["worked h"] * 3600 == pytest.approx(63)
    assert row["stops"] is None


def test_two_runs_that_have_trained_nothing_yet_do_other_work_than_none():
    run = Run("a", "1 x g5.xlarge", 1, "spot", Work(windows=0, hours=0), model="albert-base")
    assert run.unlike(run._replace(name="b")) == ""
    # The least difference that counts is above a part of the base's.
    base = run._replace(name="b", work=Work(windows=1000, hours=1))
    other = run._replace(work=Work(windows=1000 * (1 + SAME_WORK), hours=1))
    assert other.unlike(base) == ""
    assert "other work" in other._replace(work=Work(windows=1200, hours=1)).unlike(base)


PRETRAINING = {"shape": "xxlarge", "workload": "pretraining"}


@pytest.mark.parametrize(
    "changes, instance, reason",
    [
        ({}, "p5en.48xlarge", ""),
        ({"settings": {"shape": "small"}}, "p5en.48xlarge", "another model"),
        ({"device": {"name": "AMD EPYC"}}, "p5en.48xlarge", "measured on AMD EPYC"),
        ({}, "p5.48xlarge", "measured on NVIDIA H200, not p5.48xlarge"),
        ({"settings": PRETRAINING}, "p5en.48xlarge", "another data"),
    ],
)
def test_a_benchmark_is_compared_with_what_is_like_it(
    report, rows, tmp_path, changes, instance, reason
):
    path = benchmark(tmp_path / "bench.json", speed=50.0, **{"slots": 8, **changes})
    run = ["--run", f"{path}@{instance}"]

    answer = report("cost", "--published", *run)

    row = answer["tables"][0]["rows"][3]
    not_compared = bool(reason)
    assert (row["faster"] is None) == not_compared
    assert (row["cheaper"] is None) == not_compared
    assert row["run"].endswith(" *") == not_compared
    notes = [note for note in answer["notes"] if note.startswith(path)]
    if reason:
        assert any(reason in note for note in notes)
        return

    # What is compared is projected to the work.
    (row,) = rows("cost", *run, "--windows", "90000")
    assert row["worked h"] == pytest.approx(0.5)
    assert row["cost"] == pytest.approx(31.648)


@pytest.mark.parametrize("stage", ["lm", "finetune", "predict", "serve"])
def test_a_benchmark_that_is_no_training_is_refused(refused, stage):
    file = ROOT / "benchmarks" / "results" / f"{stage}.json"
    assert "; give a run of a training, or a benchmark's step" in refused("cost", str(file))
