"""A plugin of pytest for tests/faults.py: coverage notes which test runs a line, also in its forks.

A fixture that several tests share is a context of its own: "@" and its name.
"""

import os

import coverage
import pytest


def _switch(context):
    os.environ["COVERAGE_CONTEXT"] = context  # read by tests/zygote.py
    if running := coverage.Coverage.current():
        running.switch_context(context)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart(nodeid):
    _switch(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    if fixturedef.scope == "function":
        return (yield)
    before = os.environ["COVERAGE_CONTEXT"]
    _switch(f"@{fixturedef.argname}")
    try:
        return (yield)
    finally:
        _switch(before)


class Users:
    """Collects the ids of all tests, of the quick ones, and of those that use a fixture, by its
    name."""

    def __init__(self):
        self.of = {}
        self.all = set()
        self.quick = set()

    def pytest_collection_finish(self, session):
        for item in session.items:
            self.all.add(item.nodeid)
            if item.get_closest_marker("quick"):
                self.quick.add(item.nodeid)
            for name in getattr(item, "fixturenames", ()):
                self.of.setdefault(name, []).append(item.nodeid)
