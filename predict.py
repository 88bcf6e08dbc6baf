"""Use a trained model: one that answers questions or completes text, or a pretrained encoder.

python predict.py --model runs/local --data dev.json --output-dir predictions
python predict.py --model runs/local --question "Who ...?" --context-file text.txt
python predict.py --model trial:7 --export exported        # a Hugging Face model folder
python predict.py --model runs/pretrain --export encoder   # for fill-mask, classifiers, ...
python predict.py --model exported --serve                 # a page on this machine
det experiment create configs/predict.yaml .               # --data, on all slots of a cluster

MODEL is a checkpoint folder, a run's output directory (its best checkpoint), an exported folder, or
on a Determined cluster a checkpoint's UUID, trial:ID or experiment:ID (add :latest for the newest).
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as in train.py, before torch

from detalbert.command import Parser, existing_file, explain_missing, refuse_first

if __name__ == "__main__":
    explain_missing("predict.py")

from detalbert.errors import UserError, as_raised
from detalbert.processes import end_on_signals

if __name__ == "__main__":
    end_on_signals("")

import argparse
import dataclasses
from pathlib import Path
from typing import NoReturn

MODES = {"data", "question", "export", "serve"}
# Flags that one mode alone reads.
MODE_OF = {
    "set": "data",
    "context": "question",
    "context_file": "question",
    "json": "question",
    "token_file": "serve",
}


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the flags, with the mode that they select; raise UserError for flags of another."""
    parser = Parser("predict.py", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="the trained model, in one of the forms above")
    modes = parser.add_mutually_exclusive_group(required=True)
    modes.add_argument("--data", help="file of questions, a folder or a hub name")
    modes.add_argument("--question", help="question to answer")
    modes.add_argument("--export", type=Path, metavar="DIR", help="write a new model folder")
    modes.add_argument("--serve", action="store_true", help="serve a page and a JSON endpoint")
    add("--output-dir", type=Path, default=Path("predictions"), help="folder for --data's answers")
    add("--set", action="append", metavar="data.KEY=VALUE", help="how --data is read: columns, ...")
    add("--context", help="text to search for the answer")
    add("--context-file", type=existing_file, help="file with the text to search")
    add("--json", action="store_true", help="print the reply to a question as JSON")
    add("--threshold", metavar="best|FLOAT", help="null odds above which the model abstains")
    add("--license", default="unknown", help="license of the exported weights (default: unknown)")
    add("--host", default="127.0.0.1", help="address to serve on (default: this machine only)")
    add("--port", type=int, default=8000, help="port to serve on (default: 8000)")
    add("--token-file", type=existing_file, help="file with the clients' token; else ALBERT_TOKEN")
    add("--threads", type=_threads, default="auto", metavar="auto|N", help="compute threads")
    args = parser.parse_args(argv)

    # A flag that is not set is None or False; an empty text is set, too.
    set_flags = {name for name, value in vars(args).items() if value not in (None, False)}
    (args.mode,) = set_flags & MODES
    for name, mode in MODE_OF.items():
        if name in set_flags and mode != args.mode:
            refuse(name, problem=f"--{args.mode} does without")
    return args


def refuse(name: str, problem: str) -> NoReturn:
    """Raise UserError for a flag that the user gave, as nothing would read it."""
    raise UserError(problem, key=f"--{name.replace('_', '-')}", cure="leave it out")


def _threads(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give auto or a number above 0")
    return int(text)


if __name__ == "__main__":
    refuse_first("predict.py", lambda: parse_arguments(None))

from detalbert.engine.cpu import set_threads
from detalbert.escapes import escape_controls
from detalbert.inference.file_questions import Questions
from detalbert.inference.find import find
from detalbert.inference.model import Trained, choose_threshold, load_model
from detalbert.inference.predict_file import UNCALIBRATED_LINE, check_folder, predict, score_table
from detalbert.inference.reply import ask, check_text, read_context, show
from detalbert.log import exit_with, fail, quiet_libraries, start_logging
from detalbert.training.workload import ANSWERING, LANGUAGE, check_mode


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status (cluster/restarts.md has the table)."""
    start_logging()
    quiet_libraries()
    try:
        run(parse_arguments(argv))
        return 0
    except Exception as error:
        user_error = as_raised(error)
        if user_error is None:
            raise
        return fail("predict.py", user_error)


def run(args: argparse.Namespace) -> None:
    """Run the mode that the arguments select."""
    if args.mode == "data" and os.environ.get("DET_TASK_TYPE") == "TRIAL":
        from detalbert.inference.shares import answer_on_all_slots

        answer_on_all_slots(args)
        return

    # What a user may get wrong comes before the model is loaded, which takes seconds.
    if args.mode == "data":
        check_folder(args.output_dir, args.data)
    if args.mode == "export":
        from detalbert.inference.export import check_new  # no part of what is sent to a cluster

        check_new(args.export)
    context = ""
    if args.mode == "question":
        context = read_context(args.context, args.context_file)
        check_text("--question", args.question, context)
    set_threads(args.threads)
    folder = find(args.model)
    kind = check_mode(args.mode, folder)
    if kind is ANSWERING:
        use_answering_model(args, folder, context)
    elif args.threshold is not None:
        refuse("threshold", problem=f"{args.model} is {kind.name}")
    elif kind is LANGUAGE:
        from lm.inference.saved import export_language_model, open_saved

        export_language_model(open_saved(folder), args.export, args.license)
    else:
        from pretrain.encoder_folder import export_encoder

        export_encoder(folder, args.export, args.license)
    if args.mode == "export":
        print(escape_controls(f"the model is in {args.export}"))


def use_answering_model(args: argparse.Namespace, folder: Path, context: str) -> None:
    """Answer questions with the model in `folder`, serve or export it."""
    trained = load_model(str(folder))
    threshold = choose_threshold(trained, args.threshold)
    if args.mode == "export":
        from detalbert.inference.export import export

        # An export keeps the calibration, and has the threshold among its settings.
        hparams = dataclasses.replace(trained.hparams, null_score_diff_threshold=threshold)
        export(trained._replace(hparams=hparams), args.export, args.license)
        return
    if args.mode == "data":
        questions = Questions(trained, args.data, args.set or ())
        outcome = predict(trained, questions, args.output_dir, threshold)
        # Scores, if the questions have answers.
        if outcome.metrics:
            print(score_table(outcome))
        if not trained.is_calibrated:
            print(UNCALIBRATED_LINE)
        print(escape_controls(f"predictions are in {args.output_dir}"))
    elif args.mode == "serve":
        serve(args, trained, threshold)
    else:
        show(ask(trained, args.question, context, threshold), context, args.json)


def serve(args: argparse.Namespace, trained: Trained, threshold: float) -> None:
    """Serve until interrupted. Raises UserError if no web framework is installed."""
    # Most users of a model serve nothing: the web framework is installed by those who do.
    try:
        from detalbert.inference import server
    except ImportError as missing:
        raise UserError(
            f"{missing.name} is not installed",
            key="--serve",
            cure="pip install -c constraints.txt '.[serve]'",
        ) from None
    server.serve(
        trained._replace(name=args.model),  # of its run, not of the run's best step
        threshold,
        host=args.host,
        port=args.port,
        token=server.read_token(args.token_file),
    )


if __name__ == "__main__":
    exit_with("predict.py", main)
