"""Errors as data: their parts, their line, and how they travel between processes."""

import copy
import pickle

import pytest

from detalbert import errors
from detalbert.errors import SectionError, UnknownKey, UserError


@pytest.mark.parametrize(
    ("key", "cure", "line"),
    [
        ("", "", "wrong"),
        ("data.x", "", "data.x: wrong"),
        ("", "change it", "wrong; change it"),
        ("data.x", "change it", "data.x: wrong; change it"),
    ],
)
def test_a_line_is_key_problem_and_cure(key: str, cure: str, line: str) -> None:
    error = UserError("wrong", key=key, cure=cure)
    assert str(error) == line
    assert str(error.under("--x")) == f"--x: {error.detail}"
    assert str(error) == line  # itself it stays as it was


def test_each_part_is_one_line_without_logins() -> None:
    error = UserError(
        "not\nthere\x1b[2J", key="s3://me:secret@host/a", cure="see https://you:word@host"
    )
    assert "\n" not in str(error) and "\x1b" not in str(error)
    assert "secret" not in error.key and "word@" not in error.cure


def test_an_error_travels_whole() -> None:
    """Worker processes and ranks pickle them; constructors differ, and an attribute may be set."""
    unknown = UnknownKey("lr_scal", "hyperparameters", known=["lr_scale"])
    section = SectionError([unknown, UserError("missing", key="hyperparameters.seed")])
    classes = [
        getattr(errors, name) for name in ("UserError", "Diverged", "Unavailable", "PeerLost")
    ]
    plain = [kind("wrong", key="data.x", cure="change it") for kind in classes]
    for error in (unknown, section, *plain):
        error.on_all_ranks = True
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(other) is type(error) and str(other) == str(error)
            assert (other.key, other.status, other.on_all_ranks) == (error.key, error.status, True)
    assert [problem.key for problem in pickle.loads(pickle.dumps(section)).problems] == [
        "hyperparameters.lr_scal",
        "hyperparameters.seed",
    ]
