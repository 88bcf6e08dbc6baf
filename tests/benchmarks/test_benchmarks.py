"""Each stage, short: a complete result; a planted difference fails it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import baseline, end_to_end, step
from benchmarks.__main__ import main
from benchmarks.table import line, table
from detalbert.errors import Different
from tests.conftest import ROOT
from tests.fakes.text import contexts

TINY = ["--repeats", "1", "--windows", "4", "--shape", "tiny", "--examples", "12"]


@pytest.fixture(autouse=True)
def forks(monkeypatch, python):
    """The processes of a stage are forks of the tests' zygote."""
    monkeypatch.setattr(sys, "executable", python)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The flag that names a short text."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(contexts(640)))
    return ["--text", str(path)]


def result_of(capsys, *words):
    """Return what a stage prints as JSON."""
    status = main([*words[:1], *TINY, *words[1:], "--json"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    result = json.loads(printed.out)
    assert result["stage"] == words[0]
    assert {"versions", "device", "commit", "load", "time"} <= result.keys()
    ((figure, ratio),) = result["ratio"].items()
    ours, other = (result["results"][side][figure] for side in ("ours", "baseline"))
    assert ratio == ours["median"] / other["median"]
    assert len(ours["repeats"]) == 1
    assert line(result).startswith(f"| {words[0]} ")
    return result


@pytest.mark.parametrize(
    ("workload", "unit"), [("finetuning", "windows"), ("pretraining", "windows"), ("lm", "tokens")]
)
def test_a_step_of_each_workload(
    workload,
    unit,
    text,
    monkeypatch,
    capsys,
):
    monkeypatch.setattr(step, "peak_flops", lambda *_, **__: 1e12)  # no CPU has one

    result = result_of(capsys, "step", "--workload", workload, *text)

    assert result["settings"]["workload"] == workload
    assert result["ratio"].keys() == {f"{unit}_per_second"}
    for side in result["results"].values():
        assert 0 < side["mfu"]["median"] < 1
    ours, other = result["losses"].values()
    assert ours[0] == pytest.approx(other[0], abs=1e-4)


def test_a_language_model_on_two_processes(text, capsys):
    result = result_of(capsys, "lm", *text)
    assert result["settings"]["processes"] == 2
    assert result["losses"]["ours"] == pytest.approx(result["losses"]["baseline"], abs=1e-4)


def test_fine_tuning_from_files_to_answers(capsys):
    assert result_of(capsys, "finetune")["settings"]["questions"] == 24


def test_both_sides_predict_the_same(capsys):
    assert result_of(capsys, "predict")["settings"]["questions"] == 600


def test_other_answers_fail_predict(monkeypatch, capsys):
    def answer(*words):
        folder = Path(words[-1])
        folder.mkdir()
        (folder / "predictions.json").write_text(json.dumps({"1": folder.name}))
        return ""

    monkeypatch.setattr(end_to_end, "run_python", answer)
    assert main(["predict", *TINY]) == 1
    assert "not equal: predict: the answers" in capsys.readouterr().err


@pytest.mark.parametrize("workload", ["finetuning", "pretraining"])
def test_another_loss_fails_the_step(
    workload,
    text,
    monkeypatch,
    capsys,
):
    loss = baseline.Baseline.loss
    monkeypatch.setattr(baseline.Baseline, "loss", lambda *words: 1.01 * loss(*words))
    assert main(["step", *TINY, "--workload", workload, *text]) == 1
    assert "not equal: step: loss" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("workload", "off", "exact", "fails"),
    [
        ("lm", 0.9e-4, True, False),
        ("lm", 1.1e-4, True, True),
        ("lm", float("nan"), True, True),
        ("lm", 0.1, False, False),
        ("finetuning", 0.1, True, False),  # not its first step
    ],
)
def test_losses_are_compared(workload, off, exact, fails):
    losses = {"ours": [6.0, 5.5], "baseline": [6.0, 5.5 + off]}
    if not fails:
        return step.check_losses(losses, workload, exact=exact)
    with pytest.raises(Different, match=r"step: losses \[6.0, 5.5\]"):
        step.check_losses(losses, workload, exact=exact)


def test_mistakes_are_one_line(tmp_path, capsys):
    absent = str(tmp_path / "absent")
    commands = {
        "absent/train.json": ["step", "--data", absent],
        "absent": ["step", "--workload", "lm", "--text", absent],
        "--shape 1b": ["step", "--shape", "1b"],
        "--repeats": ["step", "--repeats", "0"],
        "train.py --config": ["finetune", *TINY, "--data", absent],
    }
    for key, words in commands.items():
        assert main(words) == 2
        *_, error = capsys.readouterr().err.splitlines()
        assert error.startswith("benchmarks: error: ")
        assert key in error


def test_the_table_of_the_readme_is_printed():
    assert f"\n{table()}\n" in (ROOT / "README.md").read_text()


def test_wheels_have_versions():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.split("==")[0].lower() for line in lines if "==" in line}
    wheels = (ROOT / "benchmarks" / "gpu-wheels.txt").read_text().splitlines()
    names = {line.lower() for line in wheels if not line.startswith("#")}
    assert "determined" in names
    assert names <= pinned


@pytest.mark.parametrize(
    ("flag", "problem"), [("-S", "has no torch; set PYTHON"), ("-B", "sees no GPU")]
)
def test_what_make_gpu_needs_is_one_line(flag, problem, tmp_path, real_python):
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nexec "{real_python}" {flag} "$@"\n')  # -S: bare
    program.chmod(0o755)
    ended = subprocess.run(
        ["sh", "benchmarks/gpu.sh"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(program), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 2
    (error,) = ended.stderr.splitlines()
    assert error.startswith(f"gpu: error: {program} {problem}")
