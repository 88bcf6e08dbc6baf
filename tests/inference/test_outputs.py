"""Answers replace no checkpoint and none of their own questions; errors.csv is of the answers."""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import predict
from detalbert.inference import server
from tests.conftest import ROOT


@pytest.mark.parametrize("inside", ["checkpoints", "checkpoints/step"])
def test_answers_never_replace_a_checkpoint(inside, local_run, tmp_path, capsys):
    run = shutil.copytree(local_run.path, tmp_path / "run")
    folder = run / inside.replace("step", local_run.checkpoint.name)
    before = sorted(path.name for path in folder.iterdir())
    status = predict.main(
        ["--model", str(run), "--data", str(local_run.questions), "--output-dir", str(folder)]
    )
    assert status == 2
    assert "a run's folder" in capsys.readouterr().err.splitlines()[-1]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_answers_never_replace_their_questions(local_run, tmp_path, capsys):
    rows = "question,context\nWhere is it?,It is in Orvane.\n"
    folder = tmp_path / "answers"
    folder.mkdir()
    for name in ("predictions.csv", "errors.csv"):
        (folder / name).write_text(rows)
        command = ["--model", str(local_run.path), "--data", str(folder / name)]
        assert predict.main([*command, "--output-dir", str(folder)]) == 2
        assert (
            "the questions of --data would be replaced" in capsys.readouterr().err.splitlines()[-1]
        )
        assert (folder / name).read_text() == rows

    # Nor is a workbook written where it cannot be: said before anything is answered.
    (tmp_path / "folder.xlsx").mkdir()
    for name, words in {"folder.xlsx": "no file", "none/a.xlsx": "its folder is not there"}.items():
        output = str(tmp_path / name)
        assert (
            predict.main([*command, "--output-dir", str(tmp_path / "o"), "--output", output]) == 2
        )
        line = capsys.readouterr().err.splitlines()[-1]
        assert f"--output {output}: " in line
        assert words in line
    assert not (tmp_path / "o").exists()


def test_errors_beside_answers_are_theirs(local_run, tmp_path, capsys):
    command = ["--model", str(local_run.path), "--data", str(local_run.questions)]
    command += ["--output-dir", str(tmp_path / "o")]
    assert predict.main([*command, "--errors"]) == 0
    assert (tmp_path / "o" / "errors.csv").is_file()
    assert predict.main(command) == 0
    assert not (tmp_path / "o" / "errors.csv").exists()

    # Another file of that name is somebody's own.
    (tmp_path / "o" / "errors.csv").write_text("group of mine\n")
    assert predict.main(command) == 0
    assert (tmp_path / "o" / "errors.csv").read_text() == "group of mine\n"


def test_after_a_full_disk_all_files_are_the_old_ones(local_run, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "o"
    workbook = tmp_path / "a.xlsx"
    command = ["--model", str(local_run.path), "--data", str(local_run.questions), "--errors"]
    command += ["--output-dir", str(folder), "--output", str(workbook)]
    assert predict.main(command) == 0
    names = sorted(path.name for path in folder.iterdir())
    before = [(folder / name).stat().st_mtime_ns for name in names]

    flushed: list[int] = []

    def flush(file: int) -> None:
        flushed.append(file)
        if len(flushed) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", flush)
    assert predict.main(command) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"error: {folder} and {workbook}: cannot write there (No space left" in line
    assert sorted(path.name for path in folder.iterdir()) == names
    assert [(folder / name).stat().st_mtime_ns for name in names] == before


def test_a_server_calls_a_run_by_its_own_name(local_run, monkeypatch):
    served = []
    monkeypatch.setattr(server, "serve", lambda trained, *_, **__: served.append(trained.name))
    for model in (local_run.path, local_run.checkpoint):
        assert predict.main(["--model", str(model), "--serve"]) == 0
    assert served == [local_run.path.name, local_run.checkpoint.name]


@pytest.mark.parametrize("command", ["predict.py", "cluster.plan", "cluster.check", "reports"])
def test_output_to_a_full_disk_ends_in_one_line(command, local_run, python):
    model = str(local_run.path)
    arguments = {
        "predict.py": ["predict.py", "--model", model, "--question", "a", "--context", "b"],
        "cluster.plan": ["-m", "cluster.plan", "configs/local.yaml"],
        "cluster.check": ["-m", "cluster.check", "configs/local.yaml"],
        "reports": ["-m", "reports", "cost", "--published"],
    }
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [python, *arguments[command]],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.stderr == f"{command}: error: the disk of its output is full\n"
    assert ended.returncode == 2
