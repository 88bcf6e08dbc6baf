"""Each line that a run says opens with its level."""

import logging
import subprocess
import sys
import warnings

import pytest

from detalbert.log import exit_with, start_logging


def test_every_line_has_a_level_and_comes_once(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # it changes them
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    for _ in range(3):
        start_logging()
    logging.captureWarnings(False)
    logging.getLogger("detalbert.engine.progress").info("two\nlines")
    logging.getLogger("detalbert.training.spot").warning("EC2 announces: it")
    logging.getLogger("somebody.else").info("hidden")
    logging.getLogger("somebody.else").warning("shown")
    lines = "INFO: two\nINFO: lines\nWARNING: EC2 announces: it\nWARNING: shown\n"
    assert capsys.readouterr() == ("", lines)


CRASH = """
import warnings
from detalbert.log import start_logging
start_logging()
warnings.warn("of some\\nlibrary", UserWarning)
raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
"""


def test_warnings_and_uncaught_errors_have_levels_too(script):
    ended = subprocess.run(script(CRASH), capture_output=True, text=True, timeout=100)
    assert ended.returncode == 1
    warning, *errors = ended.stderr.splitlines()
    assert warning == "WARNING: UserWarning: of some library"
    assert errors[0] == "ERROR: Traceback (most recent call last):"
    assert errors[-1] == "ERROR: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
    assert all(line.startswith("ERROR: ") for line in errors)


def test_a_command_without_standard_output_ends_well(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(SystemExit) as ended:
        exit_with("reports", lambda: int(sys.stdout.isatty()))
    assert ended.value.code == 0
