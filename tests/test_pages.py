"""The commands of every page run, in the page's order; those of `det` are what `det` knows."""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from determined import cli
from determined.cli.cli import all_args_description

from tests.cluster.planted import master
from tests.conftest import ROOT, settings
from tests.pages import PROGRAM, commands, need, pages

SHIPS = "The Zanto was loaded with pottery. The Belmira was loaded with salt."
# A run of hours is cut to steps, a large text to that of the pages; all else is as on the page.
SHORT = settings(max_steps=4, checkpoint_period=4, validation_period=4, num_workers=0)
OTHERS = {
    "configs/lm_local.yaml": "--set data.documents=wiki.jsonl --set data.vocab_size=400 "
    "--set data.validation_fraction=0.3",
    "configs/pretrain_local.yaml": "--set data.text=wiki.jsonl --set data.vocab_size=400",
    "configs/pretrain_base.yaml": "--set data.tokenizer=embedded/albert-tiny",
    "configs/local.yaml": "--set data.max_train_examples=99",
}
HOUR = "docs/your-questions.md"
ON_PAGES = [page for page in pages() if page != HOUR and not all(map(need, commands(page)))]


def shortened(command: str) -> str:
    if command.startswith(PROGRAM):
        return command
    if command.startswith("for "):
        return shortened_loop(command)
    words = shlex.split(command, comments=True)
    config = next((word for word in words if word in OTHERS), "")
    if not config or "cluster." in command:
        return command
    options = OTHERS[config].split()
    if "data.vocab_size=null" in command:
        options = options[:2]
    if "-m pretrain " not in command:
        options += SHORT
    return shlex.join(words + options).replace("step-00005000", "step-00000004")


def shortened_loop(command: str) -> str:
    """The loop with fewer steps and one number of loader workers."""
    command = command.replace("in 0 4;", "in 1;").replace("((200/", "((8/")
    for config, options in OTHERS.items():
        command = command.replace(f"{config} ", f"{config} {options} ")
    return command


def write_program(path: Path, command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {command} "$@"')
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path, local_run, lm_run, python, monkeypatch) -> Path:
    """The repository with the files that the pages name, and `python` in the path."""
    for path in ROOT.glob("[!.]*"):
        if path.name not in ("runs", "README.md"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copy(ROOT / "README.md", tmp_path)
    (tmp_path / "runs").mkdir()
    for name, run in {"local": local_run.path, "squad": local_run.path, "lm": lm_run}.items():
        (tmp_path / "runs" / name).symlink_to(run)
    texts = []
    for page in pages():
        texts += (ROOT / page).read_text().split("\n## ")
    (tmp_path / "book.txt").write_text("\n".join(texts[:9]))
    (tmp_path / "wiki.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "ships.txt").write_text(SHIPS)
    (tmp_path / "fork.yaml").write_text("name: fork")
    (tmp_path / "my-master.yaml").write_text(yaml.safe_dump(master("master-aws-modern.yaml")))
    measured = json.loads((ROOT / "benchmarks" / "results" / "step-h100.json").read_text())
    for name, count in {"bench": 1, "bench1": 1, "bench8": 8}.items():
        measured["device"]["count"] = count
        (tmp_path / f"{name}.json").write_text(json.dumps(measured))
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    write_program(programs / "python", f'"{python}"')
    write_program(programs / "torchrun", f'"{python}" -m torch.distributed.run')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("page", ON_PAGES)
def test_every_command_of_a_page_runs(page, checkout):
    if page == "lm/README.md":  # it trains its own
        (checkout / "runs" / "lm").unlink()
    for command in commands(page):
        if need(command) is None and "--serve" not in command:
            ended = subprocess.run(
                ["bash", "-c", shortened(command)],
                cwd=checkout,
                capture_output=True,
                text=True,
                timeout=300,
            )
            shown = f"{command}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
            assert ended.returncode == 0, shown


def commands_of_det() -> list[str]:
    """Those in blocks of the pages, and those in their text."""
    lines = []
    for page in pages():
        for command in commands(page):
            lines += re.findall(r"^ ?(det .*)", command, re.MULTILINE)
        lines += re.findall(r"`(det [^`]*[0-9][^`]*)`", (ROOT / page).read_text())
    # `det deploy` has a parser of its own.
    return [line for line in lines if not line.startswith("det deploy ")]


def test_every_command_of_det_is_one_that_det_knows(tmp_path, monkeypatch):
    """By the parser of `det` itself, in the text of the pages, too."""
    assert len(commands_of_det()) > 15
    for name in ("configs", "cluster"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "fork.yaml").touch()
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    cli.add_args(parser, all_args_description)
    for command in commands_of_det():
        filled = re.sub(r"\b(ID|N)\b", "7", command.partition(" > ")[0])
        words = shlex.split(filled, comments=True)
        assert parser.parse_args(words[1:]).func, command
