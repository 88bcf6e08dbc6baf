"""Every command says how it is used, and what it needs."""

import importlib
import subprocess

import pytest

from detalbert import __version__
from tests.conftest import ROOT

NEEDED = {"benchmarks": "stage", "cluster.check": "", "cluster.plan": "", "reports": ""}
NEEDED |= {"detalbert.inference.register": "checkpoint, --as", "train": ""}
NEEDED |= {"detalbert.corpus": "config, --output", "pretrain.score": "RUN, --config"}
HELP = """
import runpy, sys
sys.argv = [sys.argv[1], "--help"]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    heavy = {"torch", "transformers", "determined", "datasets", "pandas"} & {*sys.modules}
    assert not heavy, heavy
"""


@pytest.mark.parametrize("module", ["predict", *NEEDED])
def test_help_has_an_example_and_loads_no_heavy_library(module, python, real_python):
    told = {"cwd": ROOT, "capture_output": True, "text": True}
    done = subprocess.run([real_python, "-c", HELP, module], **told)
    assert done.returncode == 0, done.stderr
    usage, said, *_ = done.stdout.split("\n\n")
    assert usage.startswith("usage: ") and not said.startswith(("options:", "positional"))
    name = f"{module}.py" if module in ("train", "predict") else f"-m {module}"
    assert f"python {name} " in done.stdout
    if missing := NEEDED.get(module):
        done = subprocess.run([python, "-m", module], **told)
        assert done.returncode == 2
        assert f"the following arguments are required: {missing}" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "module",
    [
        "benchmarks.__main__",
        "cluster.check",
        "cluster.facts.update",
        "cluster.plan",
        "detalbert.corpus.__main__",
        "detalbert.inference.register",
        "predict",
        "pretrain.score",
        "reports.__main__",
        "train",
    ],
)
def test_every_command_prints_the_version(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"detalbert {__version__}\n"
