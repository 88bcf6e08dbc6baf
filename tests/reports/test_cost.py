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
from tests.conftest import ROOT
from tests.reports.conftest import TODAY


def test_the_published_table_comes_out_of_price_and_time(capsys, rows):
    one, eight, many = rows("cost", "--published")
    assert one["cost"] == pytest.approx(112.21, abs=0.005) and round(many["cost"]) == 47
    assert round(many["faster"]) == 46 and round(many["cheaper"] * 100) == 58
    assert round(many["windows/s"] / one["windows/s"]) == 46
    assert eight["cost"] == pytest.approx(4.7 * 24.48)
    assert [row["slots"] for row in (one, eight, many)] == [1, 8, 64]
    assert (many["EM"], many["F1"]) == (86.24, 89.06)
    assert many["$/1,000 windows"] == pytest.approx(many["cost"] / 264.396)
    assert main(["cost", "--published", *TODAY]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("112.21  112.21", "17.09-47.00", "45.84x", "58%"))
    table = rows("cost", "--published", "--baseline", "published, 64 GPUs")
    assert table[2]["faster"] == 1 and table[0]["cheaper"] == pytest.approx(1 - 112.2102 / 47.0016)
    assert (one["low"], many["low"]) == (None, pytest.approx(0.8 * 8 * 2.67))
    assert many["on demand"] == pytest.approx(0.8 * 8 * 24.48)


def benchmark(path: pathlib.Path, speed: object, slots: int = 1, **more: object) -> str:
    content = {"stage": "step", "device": {"name": "NVIDIA H200", "count": slots}}
    content["settings"] = {"shape": "xxlarge", "tokens_per_window": 175.0}
    content["results"] = {"ours": {"windows_per_second": {"median": speed}}}
    path.write_text(json.dumps({**content, **more}))
    return str(path)


def test_a_budget_ends_with_3(capsys):
    assert main(["cost", "--published", "--budget", "275", *TODAY]) == 0
    assert capsys.readouterr().err == ""
    assert main(["cost", "--published", "--budget", "100", *TODAY]) == 3
    out, err = capsys.readouterr()
    assert err == "reports: $274.27 is $174.27 over the budget of $100.00\n" and "112.21" in out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("command, words", [("cost", "47.00"), ("scaling", "41.8%")])
def test_a_terminal_of_80_columns_is_enough(monkeypatch, command, words):
    """And nothing is cut off on a narrower one; with --wide no line is folded."""

    def shown(columns: str, *more: str) -> str:
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setattr(sys, "stdout", Terminal())
        assert main([command, "--published", *more, *TODAY]) == 0
        text = re.sub(r"\x1b\[\d+m", "", sys.stdout.getvalue())
        return "\n".join(line for line in text.splitlines() if not line.startswith("note: "))

    for columns in ("80", "60"):
        text = shown(columns)
        assert max(map(len, text.splitlines())) <= int(columns)
        assert words in text and "\u2026" not in text
    assert command == "scaling" or "published, 64 GPUs  8 x p3.16" in shown("80", "--wide")


def test_markdown_has_a_row_per_run(capsys):
    assert main(["cost", "--published", "--markdown", *TODAY]) == 0
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines()]
    (row,) = (row for row in lines if row[0] == "| published, 64 GPUs")
    assert row[1:7] == ["8 x p3.16xlarge", "64", "spot", "92.75", "0.80", "0.80"]
    odd = Report("t", [Table("t", pd.DataFrame({"run": [r"a\|b"]}))], [], [])
    page = fill_template(ROOT / "reports" / "report.md.j2", report=odd)
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
    printed = yaml.safe_load((ROOT / "cluster" / "facts" / "published.yaml").read_text())["scaling"]
    for row in (row for row in printed if "efficiency" in row):
        last = table[table["series"] == row["series"]].iloc[-1]
        assert last["efficiency"] == pytest.approx(row["efficiency"], abs=0.006)
    found = table.loc[table["series"].str.contains("no loader"), "efficiency"].tolist()
    computed = [1, 0.84043, 0.62559, 0.41724]  # printed: 41.7 %, computed 41.8 %
    assert found == pytest.approx(computed, abs=1e-3)


def test_scaling_puts_a_measured_series_beside_the_published(rows, refused, tmp_path):
    paths = [benchmark(tmp_path / f"{n}.json", s, slots=n) for n, s in ((8, 72.0), (1, 10.0))]
    arguments = [text for path in paths for text in ("--run", f"ours={path}")]
    table = rows("scaling", "--published", *arguments)
    ours = [row for row in table if row["series"] == "ours"]
    assert [row["efficiency"] for row in ours] == pytest.approx([1.0, 0.9])
    assert {row["source"] for row in table} == {"measured", "published"}
    twice = ["--run", f"ours={paths[1]}"]
    assert "two throughputs for 1" in refused("scaling", *arguments, *twice)


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
    assert (row["EM"], row["F1"]) == (metrics["best"]["exact"], metrics["best"]["f1"])
    (free,) = rows("cost", "--run", str(folder))
    assert free["cost"] is None and free["worked h"] == row["worked h"]
    both = rows("cost", "--published", "--run", str(folder))
    assert both[3]["run"].endswith(" *") and both[3]["faster"] is None  # 1475x and 100 % before


def test_all_starts_of_a_local_run_count(rows, tmp_path):
    """Two starts, of 130 and 235 s; 120 steps of 8 windows."""
    spans = ("24T10:00:00", "24T10:02:10"), ("24T23:58:00", "25T00:01:55")
    times = [[f"2026-11-{moment}.000+00:00" for moment in span] for span in spans]
    throughput = {"examples_per_second": 8.0, "tokens_per_second": 1600.0, "training_windows": 480}
    throughput |= {"training_seconds": 60.0, "checkpoint_seconds": [1, 2]}
    starts = {"starts": [{"start": start, "end": end} for start, end in times]}
    config = {"hyperparameters": {"global_batch_size": 8, "model": "x/albert-base-v2"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))

    def row(speed: dict[str, Any], *more: str) -> dict[str, Any]:
        content = {"best": {"exact": 1.0, "f1": 2.0}, "last": {"steps": 120}, "throughput": speed}
        (tmp_path / "metrics.json").write_text(json.dumps(content))
        return rows("cost", "--run", f"{tmp_path}@g5.xlarge", *more)[0]

    found = row(throughput | starts)
    assert found["worked h"] * 3600 == pytest.approx(130 + 235)
    assert found["elapsed h"] * 3600 == pytest.approx(14 * 3600 + 115)
    assert (found["stops"], found["kinds"]) == (1, "1 restarted")
    assert found["cost"] == pytest.approx(365 / 3600 * 1.006)
    assert found["$/1,000 windows"] == pytest.approx(found["cost"] / 0.96)
    found = row(throughput | starts, "--tokens")
    assert found["$/1M tokens"] == pytest.approx(found["cost"] / 0.192)
    assert found["tokens/s"] == 1600
    found = row(throughput)  # as runs were recorded before
    assert found["worked h"] * 3600 == pytest.approx(63) and found["stops"] is None


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
def test_a_benchmark_is_compared_with_what_is_like_it(
    report, rows, tmp_path, changes, instance, said
):
    path = benchmark(tmp_path / "bench.json", 50.0, **{"slots": 8, **changes})
    run = ["--run", f"{path}@{instance}"]
    found = report("cost", "--published", *run)
    row = found["tables"][0]["rows"][3]
    assert (row["faster"] is None) == (row["cheaper"] is None) == bool(said)
    assert row["run"].endswith(" *") == bool(said)
    assert any(said in note for note in found["notes"] if note.startswith(path)) or not said
    if not said:  # projected to the work
        (row,) = rows("cost", *run, "--windows", "90000")
        assert row["worked h"] == pytest.approx(0.5) and row["cost"] == pytest.approx(31.648)


@pytest.mark.parametrize("stage", ["lm", "finetune", "predict", "serve"])
def test_a_benchmark_that_is_no_training_is_refused(refused, stage):
    file = ROOT / "benchmarks" / "results" / f"{stage}.json"
    assert "; give a run of a training, or a benchmark's step" in refused("cost", str(file))
