"""The functions of docs/a-step.md: a training calls them in that order."""

import inspect
import re
import sys
from pkgutil import resolve_name

from tests.conftest import ROOT, TINY
from tests.engine.trials import config_file
from tests.fakes.runs import run


def code_of(file, function):
    """Return the code of a function or method, without its decorators."""
    module = file.removesuffix(".py").replace("/", ".")
    return inspect.unwrap(resolve_name(f"{module}:{function}")).__code__


def test_a_training_calls_the_functions_of_the_page_in_its_order(tmp_path):
    page = (ROOT / "docs" / "a-step.md").read_text()
    stations = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", page, re.MULTILINE)
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
