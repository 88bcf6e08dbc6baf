"""Every command says how it is used, and what it needs."""

import subprocess

import pytest

from tests.conftest import ROOT

NEEDED = {"benchmarks": "stage", "cluster.check": "", "cluster.plan": "", "reports": ""}
NEEDED |= {"detalbert.inference.register": "checkpoint, --as", "pretrain": "--config, --output-dir"}
NEEDED |= {"pretrain.score": "RUN, --config", "train": ""}


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
