"""Run the linter, the types and the tests side by side, and end with a line for each of them.

python -m tests.parts check     # ruff, format, mypy
python -m tests.parts quick     # these, and the tests that start no process and are not slow
python -m tests.parts test      # these, and all tests but the soak

mypy alone would leave a core idle, so pytest runs beside it. What the others print stands minutes
above the end of the tests: so the last lines name each part again, and say how it ended.
"""

import subprocess
import sys
import threading
from pathlib import Path

BIN = Path(sys.executable).parent
CHECKS = {
    "ruff": [BIN / "ruff", "check", "."],
    "format": [BIN / "ruff", "format", "--check", "."],
    "mypy": [BIN / "mypy"],
}
PYTEST = [sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "worksteal"]
TESTS = {"check": None, "quick": [*PYTEST, "-m", "quick and not slow"], "test": PYTEST}


class Part:
    """A command, and how it ended: `status`, and the last line that it printed, if that is read."""

    def __init__(self, name: str, command: list[str | Path]) -> None:
        self.name = name
        self.command = command
        self.status = 0
        self.last_line = ""

    def run(self) -> None:
        """Run the command; its output goes straight to the terminal."""
        self.status = subprocess.run(self.command).returncode

    def run_held_back(self) -> None:
        """Run the command, and print its output when it has ended."""
        done = subprocess.run(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.status = done.returncode
        lines = done.stdout.split("\n")
        self.last_line = next((line for line in reversed(lines) if line.strip()), "")
        print(done.stdout, end="", flush=True)

    def __str__(self) -> str:
        outcome = "FAILED" if self.status else "passed"
        return f"{self.name:8}{outcome:8}{self.last_line}"


def main(target: str) -> int:
    """Run the parts of `target`; return 1 if any of them failed, else 0."""
    checks = [Part(name, command) for name, command in CHECKS.items()]
    command = TESTS[target]
    tests = [Part("pytest", command)] if command else []

    def run_checks() -> None:
        for part in checks:
            part.run_held_back()

    beside = threading.Thread(target=run_checks)
    beside.start()
    for part in tests:
        part.run()
    beside.join()

    parts = [*checks, *tests]
    print(f"\nmake {target}:")
    for part in parts:
        print(part)
    return int(any(part.status for part in parts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
