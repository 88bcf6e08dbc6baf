"""Fixtures that several test files use."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The folder of real SQuAD files, the real tokenizer and the golden results."""
    if not (SHARED / "golden").is_dir():
        pytest.skip("../shared (real SQuAD files and golden results) is not there")
    return SHARED
