"""A plugin of pytest for tests/faults.py: coverage notes which test runs a line, also in its forks.

A fixture that several tests share is a context of its own: "@" and its name.
"""

import os
from typing import Any

import coverage
import pytest


def _switch(context: str) -> None:
    os.environ["COVERAGE_CONTEXT"] = context  # read by tests/zygote.py
    if running := coverage.Coverage.current():
        running.switch_context(context)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid: str) -> None:
    _switch(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
    if fixturedef.scope == "function":
        return (yield)
    before = os.environ["COVERAGE_CONTEXT"]
    _switch(f"@{fixturedef.argname}")
    try:
        return (yield)
    finally:
        _switch(before)


class Users:
    """Collects the ids of all tests, and of those that use a fixture, by its name."""

    def __init__(self) -> None:
        self.of: dict[str, list[str]] = {}
        self.all: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.all.append(item.nodeid)
            for name in getattr(item, "fixturenames", ()):
                self.of.setdefault(name, []).append(item.nodeid)
