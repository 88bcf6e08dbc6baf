"""Every command starts as a user starts it, in an interpreter of its own."""

import subprocess

import pytest

from tests.conftest import ROOT

MODULES = "benchmarks cluster.check cluster.memory detalbert.inference.register pretrain"


@pytest.mark.parametrize("module", [*MODULES.split(), "pretrain.score", "reports", "train"])
def test_a_command_says_how_it_is_used(module: str, real_python: str) -> None:
    command = [real_python, "-m", module, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    usage, said, *_ = done.stdout.split("\n\n")
    assert usage.startswith("usage: ") and not said.startswith(("options:", "positional"))


NEEDED = {
    "benchmarks": "stage",
    "pretrain": "--config, --output",
    "pretrain.score": "RUN, --config",
}
NEEDED |= {"detalbert.inference.register": "checkpoint, --as", "cluster.memory": "config"}


@pytest.mark.parametrize("module", NEEDED)
def test_what_a_command_needs_is_named(module: str, python: str) -> None:
    done = subprocess.run([python, "-m", module], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.endswith(f"the following arguments are required: {NEEDED[module]}\n")
