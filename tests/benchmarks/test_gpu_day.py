"""A day with a GPU, on a CPU: every stage runs, limits hold, results reach the pages."""

import json
import os
import re
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
from torch.autograd.profiler_util import Interval

from benchmarks import gpu_day, gpu_render, sweep, table
from benchmarks.__main__ import main as benchmark
from benchmarks.gpu_day import STAGES, main, run_stage
from benchmarks.gpu_render import render_day
from benchmarks.step_profile import summarize_events
from cluster.estimates.speeds import _measurement
from detalbert.errors import UserError
from detalbert.squad import world
from tests.conftest import ROOT

STEPS = [name for name in STAGES if name.startswith("step-")]
PAGES = {"README": "README.md", "PAGE": "docs/speed.md", "SPEEDS": "cluster/facts/speeds.yaml"}


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory, python: str) -> Path:
    """The results of all stages with the smallest models, on a CPU."""
    folder = tmp_path_factory.mktemp("day")
    squad = folder / "squad"
    squad.mkdir()
    for name, split in (("train", "train"), ("dev", "validation")):
        (squad / f"{name}.json").write_text(json.dumps(world.load_world(split)))
    words = ["--device", "cpu", "--output", str(folder / "results"), "--seconds", "3000", "--"]
    words += ["--data", str(squad), "--tokenizer", "embedded/albert-tiny"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        # Of the tests some that are quick: test_watched.py runs anyway.
        quick = STAGES["tests"] | {"cpu": "--tests tests/engine/test_norm.py"}
        patch.setitem(STAGES, "tests", quick)
        assert main(words) == 0
    return folder / "results"


def test_every_stage_leaves_a_complete_result(day: Path) -> None:
    assert {path.name for path in day.iterdir()} == {f"{name}.json" for name in STAGES}
    results = {name: json.loads((day / f"{name}.json").read_text()) for name in STAGES}
    assert set(results["tests"]["tests"].values()) == {"passed"}
    for name in STEPS:
        first, second = results[name]["budgets"]
        assert first["max_tokens_per_forward"] == 512
        assert second["max_tokens_per_forward"] == 1024
        assert first["forwards_per_step"] > second["forwards_per_step"]
        for figures in (first, second):
            assert figures["tokens_per_second"]["median"] > 0
            assert figures["planned_bytes"] > 1e9
            assert figures["profile"]["launches"] > 100
            assert figures["profile"]["kernels"]


def as_on_a_gpu(day: Path, folder: Path) -> Path:
    """A copy of a day's results with the names and figures that a GPU would add."""
    shutil.copytree(day, folder)
    for path in folder.glob("*.json"):
        result = json.loads(path.read_text())
        result["device"] |= {"type": "cuda", "name": "NVIDIA H100 80GB HBM3"}
        if path.stem == "check":
            result |= {"driver": "580.159.04, 1980 MHz", "memory_bytes": 81559 * 2**20}
        if path.stem in ("step-finetuning", "step-pretraining"):
            result["settings"]["shape"] = "xxlarge" if "fine" in path.stem else "base"
        for figures in result.get("budgets", []):
            figures |= {"used_bytes": 12 * 2**30, "planned_bytes": 13.5 * 2**30}
        path.write_text(json.dumps(result))
    return folder


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository's pages and results."""
    for name, page in PAGES.items():
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
        monkeypatch.setattr(gpu_render, name, tmp_path / page)
    shutil.copytree(table.RESULTS, tmp_path / "results")
    monkeypatch.setattr(table, "RESULTS", tmp_path / "results")
    return tmp_path


def test_a_day_reaches_the_pages_and_the_facts(day: Path, pages: Path, tmp_path: Path) -> None:
    results = as_on_a_gpu(day, tmp_path / "day")
    rows_before = yaml.safe_load((pages / PAGES["SPEEDS"]).read_text())["rows"]

    for _ in range(2):  # the second time nothing changes
        render_day(results)
        texts = [(pages / page).read_text() for page in PAGES.values()]

    readme, speed, facts = texts
    assert readme.count("| step lm tiny, NVIDIA H100 |") == 2
    assert "| step finetuning xxlarge, NVIDIA H100 |" in readme
    assert speed.count("| 12.0 | 13.5 |") == 8
    assert re.search(r"NVIDIA H100 80GB HBM3, \d+ cores; driver 580.159.04", speed)
    rows = yaml.safe_load(facts)["rows"]
    added = [row for row in rows if row not in rows_before]
    assert len(added) == 8 == len(rows) - len(rows_before)
    for row in added:
        measurement = _measurement(row)
        assert measurement.shape.gpu == "H100"
        assert measurement.shape.gigabytes == 80
        assert measurement.tokens > 0
    # The copy is what the next rendering reads.
    render_day(pages / "results" / "gpu")
    assert [(pages / page).read_text() for page in PAGES.values()] == texts


def test_a_day_that_was_cut_is_rendered(day: Path, pages: Path, tmp_path: Path) -> None:
    results = as_on_a_gpu(day, tmp_path / "day")
    for name in ("tests", "step-lm-1b", "finetune", "predict"):
        (results / f"{name}.json").unlink()
    path = results / "step-lm-125m.json"
    step = json.loads(path.read_text())
    del step["budgets"][1]["profile"]
    step["budgets"].append({"max_tokens_per_forward": 32768, "out_of_memory": True})
    path.write_text(json.dumps(step))

    render_day(results)

    assert (pages / "docs/speed.md").read_text().count("| 12.0 | 13.5 |") == 6


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
    assert line.startswith("benchmarks: error: no GPU that torch ")
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
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"gpu: error: {bare} has no torch; set PYTHON")


HANGING = """import os, pathlib, subprocess, sys, time
from detalbert import files
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[-1]).with_name("child").write_text(str(child.pid))
with files.whole_file(pathlib.Path(sys.argv[-1])) as file:
    file.write("half")
    file.flush()
    time.sleep(600)
"""


def test_a_stage_ends_at_its_limit_with_its_children(
    tmp_path: Path, real_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "python"
    hanging.write_text(f"#!/bin/sh\nexec '{real_python}' -c '{HANGING}' \"$@\"")
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(gpu_day, "LATEST", 0)
    output = tmp_path / "out"
    output.mkdir()
    args = Namespace(output=output, device="cpu")

    assert run_stage(["step", "--json", str(output / "step.json")], args, seconds=5) is None

    names = [path.name for path in output.iterdir()]
    assert [name for name in names if not name.startswith(".detalbert-tmp-")] == ["child"]
    child = int((output / "child").read_text())
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != "zombie":
        assert time.monotonic() < deadline, "the child outlived its stage"
        time.sleep(0.1)


def test_a_day_that_is_over_leaves_stages_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {}

    def run(words: list[str], args: Namespace, seconds: float) -> int | None:
        limits[Path(words[-1]).stem] = seconds
        return 0 if seconds > 50 else None

    monkeypatch.setattr(gpu_day, "run_stage", run)
    (tmp_path / "predict.json").touch()  # of another day
    assert main(["--output", str(tmp_path), "--seconds", "960"]) == 0
    assert limits["tests"] == 2 * STAGES["tests"]["seconds"]
    assert [*tmp_path.iterdir()] == []

    assert main(["--output", str(tmp_path), "--seconds", "300"]) == 2  # the check was stopped
    del limits["check"]
    monkeypatch.setitem(STAGES["check"], "seconds", 480)
    assert main(["--output", str(tmp_path), "--seconds", "300"]) == 1
    assert "step-lm-125m: stopped after 0 s" in capsys.readouterr().out


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
        yield Namespace(numeric_settings=lambda: {"compile": False})

    monkeypatch.setattr(sweep, "open_trial", open_trial)
    settings: dict[str, Any] = {"workload": "lm"}
    config = {"hyperparameters": {"compile": True}}
    with sweep.open_compiled(config, settings, tmp_path):
        assert settings["not_compiled"] == "the layers do not compile here"
        assert settings["compiled"] is False
    with pytest.raises(UserError), sweep.open_compiled({**config}, settings, tmp_path):
        raise UserError("of a step")


def test_kernels_that_overlap_leave_no_time_idle() -> None:
    events = []
    for name, start, end in [("gemm", 0, 10), ("copy", 4, 12), ("gemm", 20, 25), ("norm", 25, 26)]:
        events.append(Namespace(name=name, time_range=Interval(start, end)))
    profile = summarize_events(events)  # type: ignore[arg-type]  # their names and times
    assert profile["launches"] == 4
    assert profile["seconds"] == pytest.approx(26e-6)
    assert profile["idle_seconds"] == pytest.approx(8e-6)
    assert [kernel["name"] for kernel in profile["kernels"]] == ["gemm", "copy", "norm"]
    assert profile["kernels"][0]["calls"] == 2
    assert summarize_events([]) == {}


def test_a_failing_test_fails_its_stage_and_is_named(tmp_path: Path, python: str) -> None:
    (tmp_path / "test_two.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    file = tmp_path / "tests.json"
    command = [python, "-m", "benchmarks", "gpu-tests", "--json", str(file), "--tests"]
    ended = subprocess.run([*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 2
    assert [*json.loads(file.read_text())["tests"].values()] == ["passed", "failed"]


def test_wheels_have_versions() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if "==" in line}
    wheels = (ROOT / "benchmarks" / "gpu-wheels.txt").read_text().splitlines()
    names = {line.lower() for line in wheels if not line.startswith("#")}
    assert "determined" in names
    assert names <= pinned
