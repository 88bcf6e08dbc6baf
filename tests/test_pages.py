"""The commands of every page run, in the page's order; what needs a cluster, a GPU or the network
is parsed by its program. `make test` has the pages in SOON, and `make soak` all.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
from importlib import import_module

import pytest
import yaml
from determined import cli
from determined.cli.cli import all_args_description

import predict
import train
from cluster import check, plan
from tests.cluster.planted import master
from tests.conftest import ROOT, SOAK, settings
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
SOON = ("README.md", "cluster/README.md", "docs/predict.md", "reports/README.md")
ON_PAGES = []
for page in pages():
    if page != HOUR and not all(map(need, commands(page))):
        marks = [] if page in SOON else [pytest.mark.soak]
        ON_PAGES.append(pytest.param(page, marks=marks))
# What understands a command, by its program.
PARSERS = {
    "train.py": lambda words: train.read_own_config(train.parse_arguments(words)),
    "predict.py": predict.parse_arguments,
    "cluster.check": check.parse_flags,
    "cluster.plan": plan._parser().parse_args,
    "detalbert.corpus": import_module("detalbert.corpus.__main__").parse_arguments,
    "reports": import_module("reports.__main__")._parser().parse_args,
    "benchmarks": import_module("benchmarks.__main__").parse_arguments,
}


def shortened(command):
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
    if "detalbert.corpus" not in command:
        options += SHORT
    return shlex.join(words + options).replace("step-00005000", "step-00000004")


def shortened_loop(command):
    """The loop with fewer steps and one number of loader workers."""
    command = command.replace("in 0 4;", "in 1;").replace("((200/", "((8/")
    for config, options in OTHERS.items():
        if "max_steps" not in command:
            options = f"{options} {shlex.join(SHORT)}"
        command = command.replace(f"{config} ", f"{config} {options} ")
    return command


def run(script, checkout):
    """Run a script of bash; return what it prints. It must succeed."""
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=590,
    )
    assert ended.returncode == 0, f"{script}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
    return ended.stdout


def write_program(path, command):
    path.write_text(f'#!/bin/sh\nexec {command} "$@"')
    path.chmod(0o755)


@pytest.fixture
def files(tmp_path):
    """The repository, beside the files that the pages name."""
    for path in ROOT.glob("[!.]*"):
        if path.name not in ("runs", "README.md"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copy(ROOT / "README.md", tmp_path)
    texts = []
    for page in pages():
        texts += (ROOT / page).read_text().split("\n## ")
    (tmp_path / "wiki.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (tmp_path / "ships.txt").write_text(SHIPS)
    (tmp_path / "fork.yaml").write_text("name: fork")
    (tmp_path / "my-master.yaml").write_text(yaml.safe_dump(master("master-aws-modern.yaml")))
    return tmp_path


@pytest.fixture
def checkout(files, local_run, python, monkeypatch):
    """These files and a run, and `python` in the path."""
    (files / "runs").mkdir()
    for name in ("local", "squad"):
        (files / "runs" / name).symlink_to(local_run.path)
    programs = files / ".venv" / "bin"
    programs.mkdir(parents=True)
    write_program(programs / "python", f'"{python}"')
    write_program(programs / "torchrun", f'"{python}" -m torch.distributed.run')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return files


@pytest.mark.parametrize("page", ON_PAGES)
def test_every_command_of_a_page_runs(page, checkout):
    for command in commands(page):
        if need(command) is None and "--serve" not in command:
            run(shortened(command), checkout)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl: apt install curl")
def test_a_new_users_hour(checkout):
    """From a spreadsheet to an endpoint; in the soak with all of the page's steps."""
    with socket.socket() as holder:  # bound, never listening: the system gives its port to nobody
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        lines = ["set -e", "trap 'kill $(jobs -p)' EXIT"]
        for line in commands(HOUR):
            if need(line) is None:
                line = line.replace("localhost:8000", f"localhost:{port}")
                lines.append(line.replace("--serve", f"--serve --port {port}"))
        hour = "\n".join(lines)
        if SOAK == 1:
            hour = hour.replace("max_steps=200", "max_steps=8").replace("period=20", "period=4")
        printed = run(hour, checkout)
    table = (checkout / "answers" / "predictions.csv").read_text(encoding="utf-8-sig")
    assert table.startswith("question,context,answer,probability,calibration,error,trained_on,")
    reply, _ = json.JSONDecoder().raw_decode(printed[printed.index('{"question"') :])
    assert set(reply) >= {"question", "answer", "abstained", "start", "end", "probability"}
    if SOAK > 1:
        assert reply["answer"] == "pottery"


def not_run():
    """Commands in blocks that no test runs; those in the text of the pages, and keys of data."""
    for page in pages():
        for command in commands(page):
            if need(command):
                yield command
        text = (ROOT / page).read_text()
        yield from re.findall(r"`(python [^`]*(?:configs|runs)/[^`]*)`", text)
        for keys in re.findall(r"`(data\.\w+=[^`]*[^.`])`", text):
            yield "python train.py --set " + keys.replace(" data.", " --set data.")


def test_what_does_not_run_is_understood(files, monkeypatch):
    monkeypatch.chdir(files)
    understood = 0
    for command in not_run():
        match = re.match(r"(?:python|torchrun) (?:.*?(train\.py|predict\.py)|-m ([\w.]+))", command)
        program = match and (match[1] or match[2])
        if program in PARSERS:
            arguments = command[match.end() :].partition(" > ")[0]
            words = shlex.split(arguments, comments=True)
            PARSERS[program](words)
            understood += 1
    assert understood > 15


def commands_of_det():
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
