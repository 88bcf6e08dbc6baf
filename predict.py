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

from detalbert.command import Parser, existing_file, explain_missing, refuse_first

if __name__ == "__main__":
    explain_missing("predict.py")

from detalbert import records
from detalbert.errors import UserError
from detalbert.processes import end_on_signals

if __name__ == "__main__":
    end_on_signals("")

import argparse
import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from detalbert.inference.flags import (
    OF_QUESTIONS,
    SAMPLING,
    add_language_flags,
    add_question_flags,
    check_model_name,
    thread_count,
)

MODES = ("data", "question", "interactive", "prompt", "perplexity", "export", "serve")
# Flags by the modes that do not read them.
UNREAD = {
    "json": ("export", "serve"),
    "raw": ("export",),
    **dict.fromkeys(
        ("output", "errors", "sheet", "columns", "skip_invalid"),
        ("question", "interactive", "prompt", "perplexity", "export", "serve"),
    ),
    "top": ("data", "export", "serve"),
    **dict.fromkeys(SAMPLING, ("perplexity", "export")),
}


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("predict.py", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="the trained model, in one of the forms above")
    add("--export", type=Path, metavar="DIR", help="write a new Hugging Face model folder")
    add("--push-to-hub", metavar="NAME", help="hub repository to upload the exported folder to")
    add("--license", default="unknown", help="license of the exported weights (default: unknown)")
    add("--serve", action="store_true", help="serve a page and a JSON API (requirements-serve.txt)")
    add("--host", default="127.0.0.1", help="address to serve on (default: this machine only)")
    add("--port", type=int, default=8000, help="port to serve on (default: 8000)")
    add(
        "--host-name",
        action="append",
        default=[],
        metavar="NAME",
        help="another name by which clients call the server, beside --host (repeatable)",
    )
    add(
        "--token",
        help="token that clients must send: Authorization: Bearer TOKEN; ps shows it to other "
        "users",
    )
    add(
        "--token-file",
        type=existing_file,
        metavar="FILE",
        help="file with the token; else ALBERT_TOKEN",
    )
    add("--json", action="store_true", help="print replies as JSON, one per line; or the scores")
    add(
        "--threads",
        type=thread_count,
        default="auto",
        metavar="auto|N",
        help="compute threads; auto (default): one per core that is idle now",
    )
    add_question_flags(parser.add_argument_group("a model that answers questions"))
    add_language_flags(parser.add_argument_group("a language model"))
    return parser.parse_args(argv)


def is_set(args: argparse.Namespace, name: str) -> bool:
    """Return whether the user gave a flag that has no default."""
    value = getattr(args, name)
    return value is not None and value is not False  # 0 is given, too


def choose_mode(args: argparse.Namespace) -> str:
    """Return the one of MODES that the user gave; raise UserError for none and several."""
    # An empty text is given, too: what is wrong with `--question ""` is said later.
    modes = [mode for mode in MODES if is_set(args, mode)]
    if len(modes) != 1:
        flags = " ".join(f"--{mode}" for mode in modes)
        choices = ", ".join(f"--{mode}" for mode in MODES)
        raise UserError(f"give exactly one of {choices}", key=flags or "nothing to do")
    return modes[0]


def refuse_flags(args: argparse.Namespace, names: Iterable[str], problem: str) -> None:
    """Raise UserError for the first of `names` that the user gave, as nothing would read it."""
    for name in names:
        if is_set(args, name):
            flag = name.replace("_", "-")
            raise UserError(problem, key=f"--{flag}", cure="leave it out")


def check_arguments(args: argparse.Namespace) -> None:
    """Raise UserError for flags that contradict each other, and files that are not there."""
    mode = choose_mode(args)
    unread = [name for name in UNREAD if mode in UNREAD[name]]
    refuse_flags(args, names=unread, problem=f"--{mode} does without")
    if args.push_to_hub and not args.export:
        raise UserError(
            "it uploads what --export writes", key="--push-to-hub", cure="give --export DIR too"
        )
    check_model_name(args.model)
    # A remote file, or a name of a hub, is asked for later.
    data = args.data or ""
    if records.ending_of(data) in records.READERS and not records.is_remote(data):
        records.find_files(data, key="--data")


if __name__ == "__main__":
    refuse_first("predict.py", lambda: check_arguments(parse_arguments(None)))

import torch

from detalbert.engine.cpu import set_threads
from detalbert.escapes import escape_controls, json_line
from detalbert.inference.find import find
from detalbert.inference.model import Trained, choose_probabilities, choose_threshold, load_model
from detalbert.inference.predict_file import Questions, predict
from detalbert.inference.reply import (
    MAX_CONTEXT,
    Reply,
    ask,
    check_text,
    format_reply,
    keep_best,
)
from detalbert.inference.score_table import print_scores
from detalbert.inference.wrong_answers import format_counts
from detalbert.log import exit_with, fail, start_logging
from detalbert.records import open_text
from detalbert.training.display import quiet_libraries
from detalbert.training.model_kind import ANSWERING, LANGUAGE, check_mode


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status (docs/layout.md has the table of all commands)."""
    start_logging()
    quiet_libraries()
    try:
        args = parse_arguments(argv)
        check_arguments(args)
        run(args)
        return 0
    except UserError as error:
        if error.on_all_ranks and os.environ.get("RANK", "0") != "0":
            return error.status  # rank 0 prints it
        return fail("predict.py", error)
    except torch.OutOfMemoryError:
        memory_error = UserError(
            "the GPU's memory is full", cure="CUDA_VISIBLE_DEVICES= runs on the CPU"
        )
        return fail("predict.py", memory_error)


def run(args: argparse.Namespace) -> None:
    """Run the mode that the arguments select."""
    mode = choose_mode(args)
    # In a trial all slots answer, and the results go to the master.
    if args.data is not None and os.environ.get("DET_TASK_TYPE") == "TRIAL":
        answer_in_trial(args)
        return
    set_threads(args.threads)
    # The folder says what kind of model it is, and so what can be done with it.
    folder = find(args.model)
    kind = check_mode(mode, folder)
    problem = f"{args.model} is {kind.name}"
    if kind is not ANSWERING:
        refuse_flags(args, names=OF_QUESTIONS, problem=problem)
    if kind is not LANGUAGE:
        refuse_flags(args, names=SAMPLING, problem=problem)

    if kind is ANSWERING:
        use_answering_model(args, folder)
    elif kind is LANGUAGE:
        use_language_model(args, folder)
    else:
        from pretrain.export import export

        export(folder, args.export, args.license)
    if args.export is not None:
        print(escape_controls(f"the model is in {args.export}"))
    if args.push_to_hub:
        from detalbert.inference.export import push

        print(f"uploaded to {push(args.export, args.push_to_hub)}")


def answer_in_trial(args: argparse.Namespace) -> None:
    """Answer the rank's share of --data, with the other ranks of a Determined trial."""
    from detalbert.inference.shares import answer_on_all_slots

    if args.json:
        raise UserError(
            "a trial reports its scores to the master", key="--json", cure="leave it out"
        )
    refuse_flags(args, names=["output", "errors"], problem="a trial's files are in its checkpoint")
    answer_on_all_slots(
        args.model,
        args.data,
        open_questions(args),
        threshold=args.threshold,
        threads=args.threads,
        raw=args.raw,
    )


def use_answering_model(args: argparse.Namespace, folder: Path) -> None:
    """Answer questions with the model in `folder`, serve or export it."""
    if args.serve:
        serve(args, folder)
        return

    # What a user may get wrong comes before the model is loaded, which takes seconds.
    context = ""
    if args.interactive or args.question is not None:
        context = read_context(args.context, args.context_file)
    if args.question is not None:
        check_text("--question", args.question, context)
    model = load_model(str(folder))
    threshold = choose_threshold(model, args.threshold)

    # An export has the threshold among its settings.
    if args.export is not None:
        from detalbert.inference.export import export

        hparams = dataclasses.replace(model.hparams, null_score_diff_threshold=threshold)
        export(model._replace(hparams=hparams), args.export, args.license)
        return

    # An export keeps the temperatures; replies and files use them, unless --raw.
    model = choose_probabilities(model, args.raw)
    print_reply = partial(show, context=context, as_json=args.json, top=args.top)
    if args.data is not None:
        open_for_model = open_questions(args)
        questions = open_for_model(model)
        errors: Counter[str] | None = Counter() if args.errors else None
        metrics = predict(
            model,
            questions,
            args.output_dir,
            threshold,
            workbook=args.output,
            errors=errors,
        )
        if errors is not None and not args.json:
            print(format_counts(errors) if metrics else "no known answers to compare with")
        print_scores(
            metrics,
            folder=args.output_dir,
            workbook=args.output,
            calibrated=model.is_calibrated,
            as_json=args.json,
        )
    elif args.interactive:
        converse(model, threshold=threshold, context=context, print_reply=print_reply)
    else:
        print_reply(ask(model, args.question, context, threshold))


def serve(args: argparse.Namespace, folder: Path) -> None:
    """Serve until interrupted. Raises UserError if no web framework is installed."""
    # Most users of a model serve nothing: the web framework is installed by those who do.
    try:
        from detalbert.inference import server, web
    except ImportError as missing:
        raise UserError(
            f"{missing.name} is not installed",
            key="--serve",
            cure="pip install -r requirements-serve.txt",
        ) from None
    token = web.read_token(args.token, args.token_file)
    # People know a run by its own name, not by its best step.
    model = load_model(str(folder))._replace(name=Path(args.model).name or folder.name)
    threshold = choose_threshold(model, args.threshold)
    server.serve(
        choose_probabilities(model, args.raw),
        threshold,
        host=args.host,
        port=args.port,
        names=args.host_name,
        token=token,
    )


def open_questions(args: argparse.Namespace) -> Callable[[Trained], Questions]:
    """Return a function that opens --data for a model."""
    return partial(
        Questions.as_trained,
        data=args.data,
        columns=args.columns or {},
        sheet=args.sheet,
        skip_invalid=args.skip_invalid,
    )


def use_language_model(args: argparse.Namespace, folder: Path) -> None:
    """Complete a prompt with the model in `folder`, score a text or export the model."""
    from lm.inference import complete, export, load, perplexity

    source = load.open_saved(folder)
    if args.prompt is not None:
        prompt = args.prompt
        # Bytes that are no UTF-8 are a mistake, which is said with the prompt's name.
        if prompt == "-":
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]  # a TextIOWrapper
            prompt = sys.stdin.read()
        sampling = {key: getattr(args, key) for key in SAMPLING if getattr(args, key) is not None}
        complete.print_completion(source, prompt, sampling, args.json)
    elif args.perplexity is not None:
        perplexity.print_perplexity(source, args.perplexity, args.json)
    else:
        export.export(source, args.export, args.license)


def read_context(context: str | None, file: Path | None) -> str:
    """Return `--context`, or the text in `--context-file`; raise UserError for neither and both."""
    if file is None and context is not None:
        # Nobody searches the name of a file.
        if os.path.isfile(context):
            raise UserError(
                f"{context} is a file", key="--context", cure="give it as --context-file"
            )
        check_text("--context", "?", context)
        return context
    if file is None or context is not None:
        raise UserError("give the text to search, by --context or --context-file", key="--context")

    # One character more than is allowed: a file of any size is refused, and a pipe can be read.
    with open_text(str(file)) as lines:
        context = lines.read(MAX_CONTEXT + 1)
    check_text(str(file), "?", context)
    if "\0" in context:
        raise UserError("no text", key=str(file), cure="save it as plain text in UTF-8")
    return context.replace("\r\n", "\n").replace("\r", "\n")


def converse(
    model: Trained, threshold: float, context: str, print_reply: Callable[[Reply], None]
) -> None:
    """Answer questions from standard input, one per line, until it ends."""
    # Bytes that are no UTF-8 are read all the same, and refused with the question that has them.
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # type: ignore[union-attr]  # a TextIOWrapper
    prompt = "question> " if sys.stdin.isatty() else ""
    while True:
        try:
            question = input(prompt).strip()
            if question:
                check_text("question", question, context)
                print_reply(ask(model, question, context, threshold))
        except EOFError:
            return
        except UserError as error:  # the next one may be better
            fail("predict.py", error)


def show(reply: Reply, context: str, as_json: bool, top: int | None) -> None:
    """Print a reply, with the `top` best answers, if any: for people, or as a line of JSON."""
    if top is not None:
        reply = keep_best(reply, top)
    if as_json:
        print(json_line(dataclasses.asdict(reply)), flush=True)
        return

    # What stands around the answer in its context: bold and inverse on a terminal.
    marks = ("\033[1;7m", "\033[0m") if sys.stdout.isatty() else ("**", "**")
    print(format_reply(reply, context, marks, listed=top is not None), flush=True)


if __name__ == "__main__":
    exit_with("predict.py", main)
