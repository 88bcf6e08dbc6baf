"""Use a trained model: one that answers questions or completes text, or a pretrained encoder.

python predict.py --model runs/local --data dev.json --output-dir predictions
python predict.py --model runs/local --question "Who ...?" --context-file text.txt
python predict.py --model runs/lm --prompt "The ship"
python predict.py --model runs/lm --perplexity book.txt
python predict.py --model trial:7 --export exported        # a Hugging Face model folder
python predict.py --model runs/pretrain --export encoder   # for fill-mask, classifiers, ...
python predict.py --model exported --serve                 # a page on this machine
det experiment create configs/predict.yaml .               # --data, on all slots of a cluster

MODEL is a checkpoint folder, a run's output directory (its best checkpoint), an exported folder, or
on a Determined cluster a checkpoint's UUID, trial:ID or experiment:ID (add :latest for the newest).
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as in train.py, before torch

from detalbert.processes import end_on_signals

if __name__ == "__main__":
    end_on_signals("")

import argparse
import dataclasses
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from detalbert.settings.forms import FORMS
from detalbert.settings.hparams import COLUMNS

MODES = ("data", "question", "interactive", "prompt", "perplexity", "export", "serve")
# Options that only a model that answers questions takes, and only a language model.
OF_QUESTIONS = "context context_file threshold raw top columns form skip_invalid".split()
SAMPLING = ("max_new_tokens", "temperature", "top_p", "seed")
UNREAD = {"json": "export serve", "raw": "export", "top": "data export serve"}  # in these modes
UNREAD |= dict.fromkeys(SAMPLING, "perplexity export")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("predict.py", description=__doc__, formatter_class=style)
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
    columns = "the file's names of columns: question=Frage,context=Text (default: the model's)"
    add("--columns", type=_columns, metavar="NAME=OWN,...", help=columns)
    add("--form", choices=FORMS, help="what --data holds (default: by its first bytes)")
    add("--skip-invalid", action="store_true", help="answer the rest of a file with faults")
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
    return text if text == "auto" else _positive(text)


def _columns(text: str) -> dict[str, str]:
    columns = dict(pair.split("=", 1) for pair in text.split(",") if "=" in pair)
    if len(columns) != len(text.split(",")) or not set(columns) <= set(COLUMNS):
        names = ", ".join(COLUMNS)
        raise argparse.ArgumentTypeError(f"{text!r}: give NAME=OWN,... with names of {names}")
    return columns


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0")
    return int(text)


if __name__ == "__main__":
    parse_arguments(None)  # --help and mistakes need none of the imports below

import torch

from detalbert.engine.cpu import set_threads
from detalbert.errors import UserError
from detalbert.escapes import escape_controls, json_line
from detalbert.inference.find import find
from detalbert.inference.model import Trained, choose_probabilities, choose_threshold, load_model
from detalbert.inference.predict_file import Questions, predict, score_table
from detalbert.inference.reply import Reply, ask, format_reply, keep_best
from detalbert.log import fail, start_logging
from detalbert.squad.question_stream import check_text
from detalbert.squad.rows import MAX_CONTEXT
from detalbert.squad.sources import Reading
from detalbert.training.display import quiet_libraries
from detalbert.training.model_kind import ANSWERING, ENCODER, LANGUAGE, check_mode


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status (docs/layout.md has the table of all commands)."""
    args = parse_arguments(argv)
    start_logging()
    quiet_libraries()
    try:
        run(args)
        return 0
    except UserError as error:
        if error.on_all_ranks and os.environ.get("RANK", "0") != "0":
            return error.status  # rank 0 prints it
        return fail("predict.py", error)
    except torch.OutOfMemoryError:
        full = "the GPU's memory is full; CUDA_VISIBLE_DEVICES= runs on the CPU"
        return fail("predict.py", UserError(full))


def run(args: argparse.Namespace) -> None:
    """Run the mode that the arguments select."""
    given = [f"--{mode}" for mode in MODES if getattr(args, mode) not in (None, False)]
    if len(given) != 1:
        choices = ", ".join(f"--{mode}" for mode in MODES)
        raise UserError(f"{' '.join(given) or 'nothing to do'}: give exactly one of {choices}")
    for flag, modes in UNREAD.items():
        if getattr(args, flag) not in (None, False) and given[0][2:] in modes:
            raise UserError(f"--{flag.replace('_', '-')}: {given[0]} does without; leave it out")
    if args.data is not None and os.environ.get("DET_TASK_TYPE") == "TRIAL":
        from detalbert.inference.shares import answer_on_all_slots

        if args.json:
            raise UserError("--json: a trial reports its scores to the master; leave it out")
        questions = partial(open_questions, args)
        flags = args.threshold, args.threads, args.raw
        answer_on_all_slots(args.model, args.data, questions, *flags)
        return
    set_threads(args.threads)
    if args.push_to_hub and not args.export:
        raise UserError("--push-to-hub: it uploads what --export writes; give --export DIR too")
    folder = find(args.model)
    kind = check_mode(given[0][2:], folder)
    for flag in (*OF_QUESTIONS * (kind is not ANSWERING), *SAMPLING * (kind is not LANGUAGE)):
        if getattr(args, flag) not in (None, False):
            name = flag.replace("_", "-")
            raise UserError(f"--{name}: {args.model} is {kind.name}; leave it out")
    uses = {ANSWERING: answer_questions, LANGUAGE: use_language_model, ENCODER: export_encoder}
    uses[kind](args, folder)
    if args.export is not None:
        print(escape_controls(f"the model is in {args.export}"))
    if args.push_to_hub:
        from detalbert.inference.export import push

        print(f"uploaded to {push(args.export, args.push_to_hub)}")


def serve(args: argparse.Namespace, folder: Path) -> None:
    """Serve until interrupted. Raises UserError if no web framework is installed."""
    try:
        from detalbert.inference import server, web
    except ImportError as missing:
        cure = "pip install -r requirements-serve.txt"
        raise UserError(f"--serve: {missing.name} is not installed; {cure}") from None
    token = web.read_token(args.token, args.token_file)
    model = load_model(str(folder))
    threshold, address = choose_threshold(model, args.threshold), (args.host, args.port)
    model = choose_probabilities(model, args.raw)
    server.serve(model, threshold, address, args.host_name, token)


def answer_questions(args: argparse.Namespace, folder: Path) -> None:
    if args.serve:
        serve(args, folder)
        return
    context = read_context(args) if args.interactive or args.question is not None else ""
    if args.question is not None:
        check_text("--question", args.question, context)
    model = load_model(str(folder))
    threshold = choose_threshold(model, args.threshold)
    if args.export is None:
        model = choose_probabilities(model, args.raw)
    if args.data is not None:
        metrics = predict(model, open_questions(args, model), args.output_dir, threshold)
        if args.json:
            print(json_line({**metrics, "output_dir": str(args.output_dir)}))
            return
        if metrics:
            print(score_table(metrics))
        print(escape_controls(f"predictions are in {args.output_dir}"))
    elif args.export is not None:
        from detalbert.inference.export import export

        hparams = dataclasses.replace(model.hparams, null_score_diff_threshold=threshold)
        export(model._replace(hparams=hparams), args.export, args.license)
    elif args.interactive:
        converse(args, model, context, threshold)
    else:
        show(args, ask(model, args.question, context, threshold), context)


def open_questions(args: argparse.Namespace, model: Trained) -> Questions:
    """Return the questions of --data, read as those that the model was trained on."""
    columns = {**(model.data.get("columns") or {}), **(args.columns or {})}
    no_answer = tuple(model.data.get("no_answer") or ())
    reading = Reading(columns=columns, form=args.form, no_answer=no_answer)
    skip_invalid = args.skip_invalid or bool(model.data.get("skip_invalid"))
    return Questions(args.data, reading, skip_invalid)


def use_language_model(args: argparse.Namespace, folder: Path) -> None:
    from lm.inference import complete, export, load, perplexity

    source = load.open_saved(folder)
    if args.prompt is not None:
        prompt = args.prompt
        if prompt == "-":
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]  # a TextIOWrapper
            prompt = sys.stdin.read()
        given = {key: getattr(args, key) for key in SAMPLING if getattr(args, key) is not None}
        complete.print_completion(source, prompt, given, args.json)
    elif args.perplexity is not None:
        perplexity.print_perplexity(source, args.perplexity, args.json)
    else:
        export.export(source, args.export, args.license)


def export_encoder(args: argparse.Namespace, folder: Path) -> None:
    from pretrain.export import export

    export(folder, args.export, args.license)


def read_context(args: argparse.Namespace) -> str:
    """Return `--context`, or `--context-file`'s text. Raises UserError for neither and both."""
    if (args.context is None) == (args.context_file is None):
        raise UserError("--context: give the text to search, by --context or --context-file")
    if (file := args.context_file) is None:
        check_text("--context", "?", args.context)
        return args.context
    try:
        if file.stat().st_size > 4 * MAX_CONTEXT:  # bytes of a character at most
            raise UserError(f"{file}: too long, {MAX_CONTEXT:,} characters at most; cut it")
        context = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{file}: cannot read it ({error.strerror})") from None
    check_text(str(file), "?", context)
    return context


def converse(args: argparse.Namespace, model: Trained, context: str, threshold: float) -> None:
    """Answer questions from standard input, one per line, until it ends."""
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]  # a TextIOWrapper
    prompt = "question> " if sys.stdin.isatty() else ""
    while True:
        try:
            if question := input(prompt).strip():
                check_text("question", question, context)
                show(args, ask(model, question, context, threshold), context)
        except EOFError:
            return
        except UserError as error:  # the next one may be better
            fail("predict.py", error)


def show(args: argparse.Namespace, reply: Reply, context: str) -> None:
    if args.top is not None:
        reply = keep_best(reply, args.top)
    if args.json:
        print(json_line(dataclasses.asdict(reply)), flush=True)
        return
    marks = ("\033[1;7m", "\033[0m") if sys.stdout.isatty() else ("**", "**")
    print(format_reply(reply, context, marks, listed=args.top is not None), flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # `| head` is no error; Python writes what is left at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
