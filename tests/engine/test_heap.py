"""Memory that is freed is used again: the pages that a process gets from the system."""

import subprocess
import sys

import pytest

from tests.conftest import ROOT

# As a forward does it: 20 blocks of 4 MiB, then all are free. 20,480 pages a turn.
TURNS = """
import ctypes, resource
from detalbert.engine.heap import keep_freed_memory
{first}
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
for turn in range(5):
    if turn == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [ctypes.c_void_p(libc.malloc(4 << 20)) for _ in range(20)]
    for block in blocks:
        ctypes.memset(block, 1, 4 << 20)
    for block in blocks:
        libc.free(block)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_what_is_freed_is_used_again(real_python: str) -> None:
    pages = []
    for first in ("keep_freed_memory()", "pass"):
        command = [real_python, "-c", TURNS.format(first=first)]
        pages.append(int(subprocess.check_output(command, cwd=ROOT)))
    assert pages[0] < 1_000 < pages[1]
