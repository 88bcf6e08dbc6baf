"""Every command says how it is used, and what it needs."""

import importlib
import subprocess
import sys

import pytest

import predict
import train
from detalbert import __version__
from tests.conftest import ROOT

LONG = "a" * 5000
NEEDED = {
    "benchmarks": "stage",
    "cluster.check": "",
    "cluster.plan": "",
    "reports": "",
    "train": "",
    "detalbert.corpus": "config, --output",
    "predict": "",
}
HELP = """
import runpy, sys
sys.argv = [sys.argv[1], "--help"]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    heavy = {"torch", "transformers", "determined", "datasets", "pandas"} & {*sys.modules}
    assert not heavy, heavy
"""


def run(command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("module", NEEDED)
def test_help_has_an_example_and_loads_no_heavy_library(module, python, real_python):
    ended = run([real_python, "-c", HELP, module])
    assert ended.returncode == 0, ended.stderr
    usage, purpose, *_ = ended.stdout.split("\n\n")
    assert usage.startswith("usage: ")
    assert not purpose.startswith(("options:", "positional"))
    name = f"{module}.py" if module in ("train", "predict") else f"-m {module}"
    assert f"python {name} " in ended.stdout

    if NEEDED[module]:
        ended = run([python, "-m", module])
        assert ended.returncode == 2
        problem = f"the following arguments are required: {NEEDED[module]}"
        assert problem in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "command",
    ["train.py", "predict.py", "-m cluster.check", "-m cluster.plan", "-m detalbert.torchrun"],
)
def test_a_python_without_packages_is_told_in_one_line(command, real_python):
    bare = [sys._base_executable, "-S"]  # type: ignore[attr-defined]  # without site-packages
    ended = run([*bare, *command.split(), "configs/single.yaml"])
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{command.removeprefix('-m ')}: error: {bare[0]} lacks ")
    assert line.endswith("make train makes, or . .venv/bin/activate")


LONG = "x" * 400


@pytest.mark.parametrize("module", NEEDED)
def test_every_command_prints_the_version(module, capsys):
    package = ("benchmarks", "detalbert.corpus", "reports")
    name = f"{module}.__main__" if module in package else module
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(name).main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"detalbert {__version__}\n"


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (train.main, ["--resume", LONG]),
        (train.main, ["--set", f"hyperparameters.model={LONG}"]),
        (predict.main, ["--model", LONG, "--serve"]),
    ],
)
def test_a_text_that_is_no_name_for_a_file_is_one_line(main, words, tmp_path, capsys):
    if main is train.main:
        words = [*words, "--output-dir", str(tmp_path)]
    assert main(words) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "too long" in error
