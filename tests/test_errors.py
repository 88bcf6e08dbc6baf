"""Errors as data, and the lines that a command prints: each with its level, none to be obeyed."""

import copy
import errno
import logging
import os
import pickle
import re
import subprocess
import sys

import pytest

from detalbert import errors
from detalbert.errors import SectionError, Unavailable, UserError, counted, unknown_key
from detalbert.log import exit_with, fail, start_logging
from tests.conftest import ROOT

PRODUCT = {"detalbert", "pretrain", "lm", "cluster", "reports", "benchmarks", "train.py", "data.py"}


def test_a_count_has_its_noun():
    """No message says "1 rows", or "1 row(s)"."""
    assert [counted(number, "row") for number in (0, 1, 1200)] == ["0 rows", "1 row", "1,200 rows"]
    product = [path for path in ROOT.rglob("*.py") if path.parts[len(ROOT.parts)] in PRODUCT]
    texts = {path: path.read_text(encoding="utf-8") for path in product}
    assert len(texts) > 100
    assert [path for path, text in texts.items() if re.search(r"\w\(s\)[ ,;\"]", text)] == []


@pytest.mark.parametrize("key", ["", "data.x"])
@pytest.mark.parametrize("cure", ["", "change it"])
def test_a_line_is_key_problem_and_cure(key, cure):
    error = UserError("wrong", key=key, cure=cure)
    head, tail = f"{key}: " if key else "", f"; {cure}" if cure else ""
    assert str(error) == f"{head}wrong{tail}"
    assert str(error.under("--x")) == f"--x: wrong{tail}"
    assert str(error) == f"{head}wrong{tail}"  # itself it stays as it was


def test_each_part_is_one_line_without_logins():
    error = UserError(
        "not\nthere\x1b[2J", key="s3://me:secret@host/a", cure="see https://you:word@host"
    )
    assert "\n" not in str(error)
    assert "\x1b" not in str(error)
    assert "secret" not in error.key
    assert "word@" not in error.cure


def test_an_error_travels_whole():
    """Worker processes and ranks pickle them; constructors differ, and an attribute may be set."""
    unknown = unknown_key("lr_scal", "hyperparameters", known=["lr_scale"])
    section = SectionError([unknown, UserError("missing", key="hyperparameters.seed")])
    classes = (errors.UserError, errors.Diverged, errors.Unavailable, errors.PeerLost)
    plain = [kind("wrong", key="data.x", cure="change it") for kind in classes]
    for error in (unknown, section, *plain):
        error.on_all_ranks = True
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is type(error)
            assert str(other) == str(error)
            assert (other.key, other.status, other.on_all_ranks) == (error.key, error.status, True)
    assert len(pickle.loads(pickle.dumps(section)).problems) == 2


def test_every_line_has_a_level_and_comes_once(capsys, monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # it changes them
    for _ in range(3):
        start_logging()
    logging.captureWarnings(False)
    logging.getLogger("detalbert.engine.progress").info("two\nlines")
    logging.getLogger("somebody.else").info("hidden")
    logging.getLogger("somebody.else").warning("shown")
    assert fail("x.py", UserError("a: b")) == 2
    monkeypatch.setenv("DET_TASK_TYPE", "TRIAL")
    assert fail("x.py", Unavailable("a: b")) == 4  # the configs' log policies match it
    assert capsys.readouterr().err == (
        "INFO: two\nINFO: lines\nWARNING: shown\n"
        "x.py: error: a: b\nERROR: x.py: unavailable: a: b\n"
    )


def test_an_error_of_all_ranks_is_told_by_the_first(capsys, monkeypatch):
    error = errors.Diverged("not finite")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert fail("x.py", error) == error.status
    assert capsys.readouterr().err == "x.py: error: not finite\n"


CRASH = """
import warnings
from detalbert.log import start_logging
start_logging()
warnings.warn("of some\\nlibrary", UserWarning)
raise RuntimeError("CUDA out of memory")
"""


def test_warnings_and_uncaught_errors_have_levels_too(script):
    ended = subprocess.run(script(CRASH), capture_output=True, text=True, timeout=300)
    assert ended.returncode == 1
    lines = ended.stderr.splitlines()
    assert "UserWarning: of some" in lines[0]
    assert lines[-1] == "ERROR: RuntimeError: CUDA out of memory"
    assert {line.split(" ")[0] for line in lines} == {"WARNING:", "ERROR:"}


@pytest.mark.parametrize(("number", "status"), [(errno.EPIPE, 0), (errno.ENOSPC, 2)])
def test_an_output_that_takes_no_more_ends_a_command(number, status, capfd):
    def main():
        raise OSError(number, os.strerror(number))

    saved = os.dup(1)
    with pytest.raises(SystemExit) as ended:
        exit_with("reports", main)
    os.dup2(saved, 1)
    assert ended.value.code == status
    assert bool(capfd.readouterr().err) == bool(status)
