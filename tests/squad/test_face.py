"""squad_utils.py, the task in one import: its example runs as it is printed."""

import doctest

import squad_utils


def test_the_example_of_the_face() -> None:
    assert all(hasattr(squad_utils, name) for name in squad_utils.__all__)
    assert doctest.testmod(squad_utils) == (0, 11)
