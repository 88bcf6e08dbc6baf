"""One line in place of a traceback if Python lacks the packages, as outside of `.venv`.

It imports the standard library only, so that every command can begin with it.
"""

import sys
from pathlib import Path
from types import TracebackType

_VENV = Path(__file__).resolve().parents[1] / ".venv"
_OURS = ("cluster", "detalbert", "lm", "pretrain", "reports")


def explain_missing(command: str) -> None:
    """From now on, end `command` with status 2 and one line if a package is not installed.
    `start_logging` ends this.
    """
    others = sys.excepthook

    def explain(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        package = (getattr(error, "name", None) or "").split(".")[0]
        in_venv = Path(sys.prefix).resolve() == _VENV.resolve()
        # A fault of this package, or of the environment itself, needs its traceback.
        if kind is not ModuleNotFoundError or package in _OURS or in_venv:
            others(kind, error, trace)
            return
        print(
            f"{command}: error: {sys.executable} lacks {package}; use .venv/bin/python, which make "
            "train makes, or activate it: . .venv/bin/activate",
            file=sys.stderr,
        )
        sys.exit(2)

    sys.excepthook = explain
