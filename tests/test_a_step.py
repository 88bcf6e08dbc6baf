"""The path in the docstring of engine/trial.py: a training calls its functions in that order."""

import inspect
import re
import sys
from pkgutil import resolve_name

from detalbert.engine import trial
from tests.conftest import ROOT, TINY
from tests.engine.trials import config_file
from tests.fakes.runs import run


def code_of(file, function):
    """Return the code of a function or method, without its decorators."""
    module = file.removesuffix(".py").replace("/", ".")
    package = "" if (ROOT / file).is_file() else "detalbert."
    return inspect.unwrap(resolve_name(f"{package}{module}:{function}")).__code__


def test_a_training_calls_the_functions_of_the_path_in_its_order(tmp_path):
    stations = re.findall(r"^    ([\w/]+\.py) +([\w.]+)", trial.__doc__, re.MULTILINE)
    assert len(stations) == 30
    codes = [code_of(file, function) for file, function in stations]
    called = 0  # stations so far

    def count(frame, event, argument):
        nonlocal called
        if event == "call" and called < len(codes) and frame.f_code is codes[called]:
            called += 1

    config = config_file(tmp_path, TINY, tmp_path / "cache", max_steps=1)
    sys.setprofile(count)
    try:
        status = run(config, tmp_path / "out")
    finally:
        sys.setprofile(None)
    assert status == 0
    assert stations[called:] == []
