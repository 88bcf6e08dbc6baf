"""First stages of a day with a GPU: what the machine has, and the tests that need it."""

import shutil
import subprocess
from argparse import Namespace
from collections.abc import Iterator

import pytest
import torch

from benchmarks.measure import Result, device
from detalbert import files
from detalbert.engine import kernel
from detalbert.errors import UserError

DRIVER = "nvidia-smi --query-gpu=driver_version,clocks.max.sm,power.limit --format=csv,noheader"


def gpu_check(options: Namespace) -> Result:
    """Return compiler and GPU. Raises UserError without a GPU, except for a tiny shape."""
    result: Result = {"compiler": shutil.which("cc") or shutil.which("gcc")}
    if device().type == "cpu":
        if options.shape != "tiny":
            raise UserError(
                f"no GPU that torch {torch.__version__} sees", cure="run it on a machine with one"
            )
        return result
    properties = torch.cuda.get_device_properties(device())
    driver = subprocess.run(DRIVER, shell=True, capture_output=True, text=True)
    return result | {
        "driver": driver.stdout.strip(),
        "capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "cudnn": torch.backends.cudnn.version(),
        "flash_attention": kernel.has_kernel(device()),
    }


class EndedTests:
    """A plugin of pytest that writes after each test how it ended: a stop loses the rest only."""

    def __init__(self, options: Namespace) -> None:
        self.path = options.json
        self.tests: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Fixtures report before and after; only a failure of theirs counts.
        if report.when == "call" or report.outcome != "passed":
            self.tests[report.nodeid] = report.outcome
            files.write_json(self.path, {"tests": self.tests})


def gpu_tests(options: Namespace) -> Iterator[Result]:
    """Run the tests; raise UserError unless all pass."""
    outcomes = EndedTests(options)
    status = pytest.main([*options.tests, "-n", "0", "-p", "no:cacheprovider"], plugins=[outcomes])
    yield {"tests": outcomes.tests}
    if status != 0:
        raise UserError(f"pytest ended with status {status}", key="gpu-tests")
