"""A day with a GPU, on a CPU: every stage runs, limits hold, results reach the pages."""

import json
import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import yaml

from benchmarks import gpu_day, sweep, table
from benchmarks.__main__ import main as benchmark
from benchmarks.gpu_day import Day, main
from benchmarks.gpu_render import render_day
from benchmarks.step_profile import Span, summarize_spans
from cluster.estimates.speeds import _measurement
from detalbert.errors import UserError
from detalbert.squad import world
from tests.conftest import ROOT

NAMES = ["check", "tests", *(stage.name for stage in gpu_day.STAGES)]
PAGES = ("README.md", "docs/speed.md", "cluster/facts/speeds.yaml")


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory, python: str) -> Path:
    """The results of all stages with the smallest models, on a CPU."""
    folder = tmp_path_factory.mktemp("day")
    squad = folder / "squad"
    squad.mkdir()
    for name, split in (("train", "train"), ("dev", "validation")):
        (squad / f"{name}.json").write_text(json.dumps(world.generate(split)))
    words = ["--device", "cpu", "--tiny", "--output", str(folder / "results")]
    words += ["--data", str(squad), "--tokenizer", "embedded/albert-tiny", "--seconds", "3000"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        # Of the tests one that is quick: test_watched.py runs anyway.
        patch.setattr(gpu_day, "CPU_TESTS", ("tests/engine/test_norm.py",))
        assert main(words) == 0
    return folder / "results"


def test_every_stage_leaves_a_complete_result(day: Path) -> None:
    assert {path.name for path in day.iterdir()} == {f"{name}.json" for name in NAMES}
    results = {name: json.loads((day / f"{name}.json").read_text()) for name in NAMES}
    assert results["check"]["lacks"] == []
    assert set(results["tests"]["outcomes"].values()) == {"PASSED"}
    assert results["tests"]["complete"]
    for name in NAMES[2:6]:
        step = results[name]
        assert step["ratio"]
        tokens = [figures["max_tokens_per_forward"] for figures in step["budgets"]]
        assert tokens == list(gpu_day.TINY_BUDGETS)
        fewer, more = (figures["forwards_per_step"] for figures in reversed(step["budgets"]))
        assert fewer < more  # with larger budgets
        for figures in step["budgets"]:
            assert figures["tokens_per_second"]["median"] > 0
            assert figures["profile"]["launches"] > 100
            assert figures["profile"]["kernels"]


def as_on_a_gpu(day: Path, folder: Path) -> Path:
    """A copy of a day's results with the names and figures that a GPU would add."""
    shutil.copytree(day, folder)
    for path in folder.glob("*.json"):
        result = json.loads(path.read_text())
        if path.stem != "tests":
            result["device"] |= {"type": "cuda", "name": "NVIDIA H100 80GB HBM3"}
        if path.stem == "check":
            result["driver"] = "580.159.04, 345 MHz"
            result["gpu"] = {
                "capability": "9.0",
                "memory_bytes": 81559 * 2**20,
                "bf16_flops": 7.9e14,
                "bytes_per_second": 3e12,
            }
        if path.stem in ("step-finetuning", "step-pretraining"):
            result["settings"]["shape"] = "xxlarge" if "fine" in path.stem else "base"
        for figures in result.get("budgets", []):
            figures["peak"] = {"used_bytes": 12 * 2**30}
            figures["planned_bytes"] = 13.5 * 2**30
        path.write_text(json.dumps(result))
    return folder


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository's pages and results."""
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    shutil.copytree(table.RESULTS, tmp_path / "results")
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    return tmp_path


def test_a_day_reaches_the_pages_and_the_facts(day: Path, pages: Path, tmp_path: Path) -> None:
    results = as_on_a_gpu(day, tmp_path / "day")
    rows_before = yaml.safe_load((pages / PAGES[2]).read_text())["rows"]

    for _ in range(2):  # the second time nothing changes
        render_day(results, root=pages)
        texts = [(pages / page).read_text() for page in PAGES]

    readme, speed, facts = texts
    assert "| step lm tiny, NVIDIA H100 |" in readme
    assert readme.count("| step xxlarge, NVIDIA H100 |") == 1  # the newer one
    assert speed.count("12.0 GiB, 13.5 GiB") == 8
    assert "NVIDIA H100 80GB HBM3, capability 9.0" in speed
    rows = yaml.safe_load(facts)["rows"]
    added = [row for row in rows if row not in rows_before]
    assert len(added) == 8 == len(rows) - len(rows_before)
    for row in added:
        measurement = _measurement(row)
        assert measurement.shape.gpu == "H100"
        assert measurement.shape.gigabytes == 80
        assert measurement.tokens > 0
    # The copy is what the next rendering reads.
    render_day(None, root=pages)
    assert [(pages / page).read_text() for page in PAGES] == texts


def test_a_day_that_was_cut_is_rendered(day: Path, pages: Path, tmp_path: Path) -> None:
    results = as_on_a_gpu(day, tmp_path / "day")
    for name in ("tests", "step-lm-1b", "finetune", "predict"):
        (results / f"{name}.json").unlink()
    path = results / "step-lm-125m.json"
    step = json.loads(path.read_text())
    del step["budgets"][1]["profile"]
    step["budgets"].append({"max_tokens_per_forward": 32768, "out_of_memory": True})
    path.write_text(json.dumps(step))

    render_day(results, root=pages)

    assert (pages / "docs/speed.md").read_text().count("12.0 GiB, 13.5 GiB") == 6


def test_a_day_on_a_cpu_is_not_rendered(
    day: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark(["gpu-render", "--day", str(day)]) == 2
    assert "its results are not of a GPU" in capsys.readouterr().err
    assert benchmark(["gpu-render", "--day", str(tmp_path)]) == 2
    assert "run make gpu first" in capsys.readouterr().err


def test_without_a_gpu_one_line_says_so(tmp_path: Path, real_python: str) -> None:
    command = ["sh", "benchmarks/gpu.sh", "--output", str(tmp_path / "out")]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHON": real_python},
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("gpu: error: this machine lacks a GPU that torch ")
    assert [*(tmp_path / "out").iterdir()] == []


def test_without_torch_one_line_says_so(tmp_path: Path, real_python: str) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{real_python}" -S "$@"\n')  # without its packages
    bare.chmod(0o755)
    ended = subprocess.run(
        ["sh", "benchmarks/gpu.sh"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(bare)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2
    assert ended.stderr == f"gpu: error: {bare} has no torch; set PYTHON to one that has\n"


def test_a_stage_ends_at_its_limit_with_its_children(tmp_path: Path, real_python: str) -> None:
    script = f"""import pathlib, subprocess, sys, time
from detalbert import atomic
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
with atomic.whole_file(pathlib.Path({str(tmp_path)!r}) / "stage.json") as file:
    file.write("half")
    file.flush()
    time.sleep(600)
"""
    ended = Day(tmp_path, seconds=60, device="cpu").execute(["-c", script], seconds=5)

    assert ended.status is None
    assert [*tmp_path.iterdir()] == []
    child = int(ended.output)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != "zombie":
        assert time.monotonic() < deadline, "the child outlived its stage"
        time.sleep(0.1)


def test_a_day_that_is_over_leaves_stages_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    over = Day(tmp_path, seconds=1, device="cpu")
    assert over.run("predict", 75, ["-c", "raise SystemExit(3)"]) == ""
    assert over.failed == ["predict"]
    assert capsys.readouterr().out == "predict: left out, the day's time is over\n"


def test_limits_grow_with_the_day(tmp_path: Path, real_python: str) -> None:
    long = Day(tmp_path, seconds=480 * 100, device="cpu")
    assert long.run("stage", 0.1, ["-c", "import time; time.sleep(1); print('end')"]) == "end\n"
    assert long.failed == []


def test_a_budget_that_does_not_fit_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError
        yield

    monkeypatch.setattr(sweep, "train_steps", out_of_memory)
    trial: Any = None
    assert sweep.measure_budget(trial, [[], []], peak_flops=1.0) == {"out_of_memory": True}


def test_layers_that_do_not_compile_run_uncompiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def open_trial(config: Any, *_: Any) -> Any:
        if config["hyperparameters"]["compile"]:
            raise UserError("the layers do not compile here")
        yield Namespace(rounding=lambda: {"compile": False})

    monkeypatch.setattr(sweep, "open_trial", open_trial)
    settings: dict[str, Any] = {"workload": "lm"}
    config = {"hyperparameters": {"compile": True}}
    with sweep.open_compiled(config, settings, tmp_path):
        assert settings["not_compiled"] == "the layers do not compile here"
        assert settings["compiled"] is False
    with pytest.raises(UserError), sweep.open_compiled({**config}, settings, tmp_path):
        raise UserError("of a step")


def test_kernels_that_overlap_are_busy_once() -> None:
    spans = [Span("gemm", 0, 10), Span("copy", 4, 12), Span("gemm", 20, 25), Span("norm", 25, 26)]
    profile = summarize_spans(spans)
    assert profile["launches"] == 4
    assert profile["seconds"] == pytest.approx(26e-6)
    assert profile["busy_seconds"] == pytest.approx(18e-6)
    assert profile["gap_seconds"] == profile["longest_gap_seconds"] == pytest.approx(8e-6)
    assert [kernel["name"] for kernel in profile["kernels"]] == ["gemm", "copy", "norm"]
    assert profile["kernels"][0]["calls"] == 2


def test_wheels_have_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if "==" in line}
    wheels = (ROOT / "benchmarks" / "gpu-wheels.txt").read_text().splitlines()
    names = {line.lower() for line in wheels if not line.startswith("#")}
    assert "determined" in names
    assert names <= pinned
