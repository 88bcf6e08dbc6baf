"""Memory is that of the process that is asked about."""

import subprocess
import sys

import numpy as np
import pytest

from benchmarks.measure import memory_of_process

pytestmark = pytest.mark.usefixtures("fork")


def test_memory_of_a_child_is_its_own() -> None:
    mebibyte = 1 << 20
    ballast = np.ones(200 * mebibyte, np.uint8)  # of the parent, which a forked child starts with
    code = f"x = b'x' * {64 * mebibyte}; print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"1\n"
        peak = memory_of_process("VmHWM", child.pid)
    assert memory_of_process("VmHWM") > len(ballast)
    assert 64 * mebibyte < peak < 150 * mebibyte
