"""The end of `make check`, `make quick` and `make test` names each part that failed."""

from typing import Any

import pytest

from tests import parts


def command(text: str, status: int) -> list[Any]:
    return ["sh", "-c", f"echo {text}; exit {int(status)}"]


@pytest.mark.parametrize("failing", ["", "ruff", "mypy", "pytest", "format mypy"])
def test_the_last_lines_name_each_failed_part(
    failing: str, fork: None, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    names = failing.split()
    checks = {name: command(f"{name} ran", name in names) for name in parts.CHECKS}
    monkeypatch.setattr(parts, "CHECKS", checks)
    monkeypatch.setattr(parts, "TESTS", {"quick": command("1 passed", "pytest" in names)})
    assert parts.main("quick") == bool(names)
    lines = capfd.readouterr().out.splitlines()
    assert lines[-5] == "make quick:"
    outcomes = {line.split()[0]: line.split()[1] for line in lines[-4:]}
    assert list(outcomes) == [*parts.CHECKS, "pytest"]
    assert [name for name, outcome in outcomes.items() if outcome == "FAILED"] == names
    # What a part printed stands above, and its last line again at the end.
    assert sum("mypy ran" in line for line in lines) == 2
