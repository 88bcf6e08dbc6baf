"""The commands of an installed package: the scripts of the folder that it was installed as."""

import os
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]


def main() -> NoReturn:
    """Become `python train.py` as detalbert-train, `python predict.py` as detalbert-predict."""
    command = Path(sys.argv[0]).stem
    script = command.removeprefix("detalbert-")
    # A process of its own finds the modules beside the script first, as in a clone.
    arguments = [
        sys.executable,
        str(ROOT / f"{script}.py"),
        *sys.argv[1:],
    ]
    os.execv(sys.executable, arguments)
