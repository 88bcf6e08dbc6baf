"""The commands of an installed package: the scripts of the folder that it was installed as."""

import os
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[1]


def main() -> NoReturn:
    """Become `python train.py` as detalbert-train, `python predict.py` as detalbert-predict."""
    _, script = Path(sys.argv[0]).stem.split("-")
    # A process of its own finds the modules beside the script first, as in a clone.
    os.execv(sys.executable, [sys.executable, f"{ROOT}/{script}.py", *sys.argv[1:]])
