"""Flags of `predict.py`; --help and a mistake need none of the heavy imports."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any


def parse_arguments(argv: list[str] | None, description: str) -> argparse.Namespace:
    """Parse the command line of predict.py."""
    parser = argparse.ArgumentParser(
        prog="predict.py",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--model", required=True, help="the trained model, in one of the forms above")
    add("--export", type=Path, metavar="DIR", help="write a new Hugging Face model folder")
    add("--push-to-hub", metavar="NAME", help="hub repository to upload the exported folder to")
    add("--license", default="unknown", help="license of the exported weights (default: unknown)")
    add("--serve", action="store_true", help="serve a page and a JSON API (requirements-serve.txt)")
    add("--host", default="127.0.0.1", help="address to serve on (default: this machine only)")
    add("--port", type=int, default=8000, help="port to serve on (default: 8000)")
    names = "another name by which clients call the server, beside --host (repeatable)"
    add("--host-name", action="append", default=[], metavar="NAME", help=names)
    token = "token that clients must send: Authorization: Bearer TOKEN; ps shows it to other users"
    add("--token", help=token)
    add("--token-file", type=Path, metavar="FILE", help="file with the token; else ALBERT_TOKEN")
    add("--json", action="store_true", help="print replies as JSON, one per line; or the scores")
    threads = "compute threads; auto (default): one per core that is idle now"
    add("--threads", type=_thread_count, default="auto", metavar="auto|N", help=threads)
    _add_question_flags(parser.add_argument_group("a model that answers questions").add_argument)
    _add_language_flags(parser.add_argument_group("a language model").add_argument)
    return parser.parse_args(argv)


def _add_question_flags(add: Callable[..., Any]) -> None:
    add("--data", help="questions: SQuAD JSON, .csv, .tsv, .jsonl, .parquet, a folder or hub name")
    add("--output-dir", type=Path, default=Path("predictions"), help="folder for --data's answers")
    odds = "null odds above which the model abstains; best: that of the best F1 at validation"
    add("--threshold", metavar="best|FLOAT", help=odds)
    add("--raw", action="store_true", help="probabilities as the model gives them, uncalibrated")
    add("--top", type=_positive, metavar="K", help="list the K best answers that do not overlap")
    add("--question", help="question to answer")
    add("--context", help="text to search for the answer")
    add("--context-file", type=Path, help="file with the text to search")
    add("--interactive", action="store_true", help="read questions from standard input")


def _add_language_flags(add: Callable[..., Any]) -> None:
    add("--prompt", metavar="TEXT", help="text to continue; -: read it from standard input")
    add("--max-new-tokens", type=int, metavar="N", help="maximum new tokens (default: 200)")
    add("--temperature", type=float, metavar="X", help="temperature; 0: greedy (default: 0.8)")
    top_p = "total probability of the likeliest tokens to sample from (default: 0.95)"
    add("--top-p", type=float, metavar="P", help=top_p)
    add("--seed", type=int, metavar="N", help="seed of the sampling (default: 0)")
    add("--perplexity", metavar="FILE", help="text to score as in the run's validation")


def _thread_count(text: str) -> int | str:
    """Parse `--threads`: a number above 0, or auto."""
    return text if text == "auto" else _positive(text)


def _positive(text: str) -> int:
    """Parse a number above 0."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0")
    return int(text)
