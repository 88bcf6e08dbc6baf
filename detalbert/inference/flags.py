"""Flags of predict.py that belong to one kind of model, and the checks of their values.

A flag that is not given is None or False: so predict.py can refuse one that nothing would read, and
defaults stand where the values are used. Imports are few, for a fast --help.
"""

import argparse
import os
import re
from pathlib import Path

from detalbert.command import existing_file
from detalbert.errors import UserError
from detalbert.settings.forms import WORKBOOKS
from detalbert.settings.hparams import COLUMNS

PLACES = (
    "a checkpoint, a run's output directory, an exported folder, a hub name, a checkpoint's UUID, "
    "trial:ID, experiment:ID or model:NAME"
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Flags that only a model that answers questions takes, and only a language model.
OF_QUESTIONS = "context context_file threshold raw top columns sheet skip_invalid".split()
SAMPLING = ("max_new_tokens", "temperature", "top_p", "seed")


def add_question_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags of a model that answers questions."""
    add = group.add_argument
    add(
        "--data",
        help="questions: SQuAD JSON, .csv, .tsv, .xlsx, .ods, .jsonl, .parquet, a folder or hub "
        "name",
    )
    add("--output", type=_workbook, metavar="FILE", help="workbook for the answers: .xlsx or .ods")
    add("--errors", action="store_true", help="group --data's wrong answers, in errors.csv")
    add("--output-dir", type=Path, default=Path("predictions"), help="folder for --data's answers")
    add(
        "--threshold",
        metavar="best|FLOAT",
        help="null odds above which the model abstains; best: that of the best F1 at validation",
    )
    add(
        "--columns",
        type=_columns,
        metavar="NAME=OWN,...",
        help="the file's names of columns: question=Frage,context=Text (default: the model's)",
    )
    add("--sheet", metavar="NAME", help="sheet of a spreadsheet (default: the first)")
    add("--skip-invalid", action="store_true", help="answer the rest of a file with faults")
    add("--raw", action="store_true", help="probabilities as the model gives them, uncalibrated")
    add("--top", type=_positive, metavar="K", help="list the K best answers that do not overlap")
    add("--question", help="question to answer")
    add("--context", help="text to search for the answer")
    add("--context-file", type=existing_file, help="file with the text to search")
    add("--interactive", action="store_true", help="read questions from standard input")


def add_language_flags(group: argparse._ArgumentGroup) -> None:
    """Add the flags of a language model."""
    add = group.add_argument
    add("--prompt", metavar="TEXT", help="text to continue; -: read it from standard input")
    add("--max-new-tokens", type=int, metavar="N", help="maximum new tokens (default: 200)")
    add("--temperature", type=float, metavar="X", help="temperature; 0: greedy (default: 0.8)")
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="total probability of the likeliest tokens to sample from (default: 0.95)",
    )
    add("--seed", type=int, metavar="N", help="seed of the sampling (default: 0)")
    add("--perplexity", metavar="FILE", help="text to score as in the run's validation")


def check_model_name(name: str) -> None:
    """Raise UserError if `--model` can only be a folder, and is none: no reference, no hub name."""
    first, *others = Path(name).parts or [""]
    is_reference = ":" in name or _UUID.fullmatch(name) is not None
    is_hub_name = len(others) == 1 and not Path(first).exists()
    if not (is_reference or is_hub_name or os.path.isdir(name)):
        raise UserError("no such folder", key=f"--model {name}", cure=f"give {PLACES}")


def thread_count(text: str) -> int | str:
    """Return `auto` or a number above 0; raise ArgumentTypeError for any other text."""
    return text if text == "auto" else _positive(text)


def _columns(text: str) -> dict[str, str]:
    pairs = text.split(",")
    columns = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if len(columns) != len(pairs) or not set(columns) <= set(COLUMNS):
        names = ", ".join(COLUMNS)
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=OWN,... with names of {names}")
    return columns


def _workbook(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in WORKBOOKS:
        raise argparse.ArgumentTypeError(f"{text!r}: give a name that ends in .xlsx or .ods")
    return path


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0")
    return int(text)
