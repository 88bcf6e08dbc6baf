"""train.py that says when it first is at a place, and stays there for a second.

python -m tests.fakes.marked TRAIN-ARGUMENTS...
"""

import runpy
import sys
import time
from typing import Any

from determined import pytorch

from detalbert.training import local, workload


def mark(owner: Any, name: str, place: str) -> None:
    """Have the first call of a function say MARK and the place."""
    original: Any = getattr(owner, name)

    def marked(*args: Any, **kwargs: Any) -> Any:
        setattr(owner, name, original)
        print(f"MARK {place}", file=sys.stderr, flush=True)
        time.sleep(1)
        return original(*args, **kwargs)

    setattr(owner, name, marked)


if __name__ == "__main__":
    mark(workload.Training, "load", "start")
    mark(pytorch._PyTorchTrialController, "_validate", "validation")  # private
    mark(local, "copy_modules", "checkpoint")
    runpy.run_path(str(local.HERE / "train.py"), run_name="__main__")
