"""Every command says how it is used, and what it needs."""

import subprocess

import pytest

from tests.conftest import ROOT

NEEDED = {"benchmarks": "stage", "cluster.check": "", "cluster.plan": "", "reports": ""}
NEEDED |= {
    "detalbert.inference.register": "checkpoint, --as",
    "detalbert.corpus": "config, --output",
}
NEEDED |= {"pretrain.score": "RUN, --config", "train": ""}


HELP = """
import runpy, sys
sys.argv = [sys.argv[1], "--help"]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
finally:
    heavy = {"torch", "transformers", "determined", "datasets", "pandas"} & {*sys.modules}
    assert not heavy, heavy
"""


@pytest.mark.parametrize("module", ["predict", *sorted(NEEDED.keys() - {"benchmarks"})])
def test_help_loads_no_heavy_library_and_has_an_example(module, real_python):
    done = subprocess.run(
        [real_python, "-c", HELP, module], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    name = (
        f"{module}.py" if "." not in module and module in ("train", "predict") else f"-m {module}"
    )
    assert f"python {name} " in done.stdout


@pytest.mark.parametrize("module", NEEDED)
def test_a_command_says_how_it_is_used(module, python, real_python):
    # train.py, as a user starts it: in an interpreter of its own.
    command = [real_python if module == "train" else python, "-m", module]
    told = {"cwd": ROOT, "capture_output": True, "text": True}
    done = subprocess.run([*command, "--help"], check=True, **told)
    usage, said, *_ = done.stdout.split("\n\n")
    assert usage.startswith("usage: ") and not said.startswith(("options:", "positional"))
    if NEEDED[module]:
        done = subprocess.run(command, **told)
        missing = f"the following arguments are required: {NEEDED[module]}\n"
        assert done.returncode == 2 and done.stderr.endswith(missing)
