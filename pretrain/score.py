"""How good a pretraining is along the way: its checkpoints, each fine-tuned on SQuAD.

  python -m pretrain.score runs/pretrain --config configs/finetune_pretrained.yaml
  python -m pretrain.score experiment:3 --config configs/finetune_pretrained.yaml

RUN is the output directory of a pretraining, or experiment:ID or trial:ID of a cluster. train.py
fine-tunes every checkpoint that it kept with the recipe of --config, each in a folder of its own in
--output-dir. That gets scores.json, scores.md (the table) and scores.svg (the plot), anew after
each checkpoint. Ctrl-C stops it; the same command goes on from there.
"""

import argparse
import contextlib
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import workloads
from detalbert.errors import UserError
from detalbert.log import start_logging
from detalbert.settings import experiment
from detalbert.settings.hparams import PARSERS
from detalbert.training.folder import claim_folder, step_name
from detalbert.training.local import HERE
from pretrain.score_checkpoints import Kept, find_pretraining
from pretrain.score_files import THREADS, Scores, writing
from pretrain.score_plot import check_plotting

log = logging.getLogger("detalbert.score")


def main(argv: list[str] | None = None) -> int:
    """Score; returns the exit status: 0 done or stopped, 2 a mistake of the user's."""
    parser = argparse.ArgumentParser(
        prog="python -m pretrain.score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN")
    parser.add_argument(
        "--config", type=Path, required=True, help="the recipe; its model is not used"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("runs/scores"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE")
    args = parser.parse_args(argv)
    start_logging()
    try:
        return score(args)
    except UserError as error:
        log.error("pretrain.score: %s: %s", error.kind, error)
        return 2


def score(args: argparse.Namespace) -> int:
    """Fine-tune what has no scores yet; returns the exit status."""
    check_plotting()
    recipe = read_recipe(args.config, args.set)
    pretraining = find_pretraining(args.run)
    with contextlib.ExitStack() as stack:
        with writing(args.output_dir):
            args.output_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(claim_folder(args.output_dir))
        child = stack.enter_context(Child().on_signals())
        scores = Scores(args.output_dir, args.run, pretraining, recipe)
        for number, kept in enumerate(pretraining.kept, 1):
            if kept.steps in scores.rows or child.asked:
                continue
            log.info(
                "checkpoint %d of %d: after step %d", number, len(pretraining.kept), kept.steps
            )
            if status := fine_tune(args, kept, scores, child):
                return status
    if child.asked:
        log.info("stopped; run the same command again to go on")
    log.info("scores.json, scores.md and scores.svg are in %s", args.output_dir)
    print(scores.table())
    return 0


def fine_tune(args: argparse.Namespace, kept: Kept, scores: Scores, child: "Child") -> int:
    """Run train.py from a checkpoint, and take its scores if it comes to its end; returns 2 where
    it found a mistake of the user's, which it has told then, else 0."""
    checkpoint, output = kept.folder(), args.output_dir / step_name(kept.steps)
    if not checkpoint.is_dir():  # the pretraining goes on, and keeps few
        log.warning("%s is gone; it gets no scores", checkpoint)
        return 0
    own = f"hyperparameters.model={json.dumps(str(checkpoint))}", f"{THREADS}={scores.threads}"
    changes = [word for change in (*args.set, *own) for word in ("--set", change)]
    status = child.train("--config", str(args.config), "--output-dir", str(output), *changes)
    if status == 0 and not scores.take(kept, output):
        child.asked = True  # if not from here, then by a spot notice
    return status


def read_recipe(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """What a fine-tuning's scores depend on beside the checkpoint, by config key.

    Raises UserError for a config that does not fine-tune a checkpoint on SQuAD.
    """
    config = experiment.load(path, overrides)
    experiment.check_sections(config)
    if workloads.parsers(config) is not PARSERS:
        raise UserError(f"--config {path}: not a fine-tuning on SQuAD; give one")
    for section, key in (("hyperparameters", "model_config"), ("data", "tokenizer")):
        if config[section].get(key) is not None:
            raise UserError(
                f"{section}.{key}: a checkpoint has its own; --set {section}.{key}=null"
            )
    values = {**experiment.single_values(config["hyperparameters"]), "model": "the checkpoint"}
    hparams = asdict(PARSERS.hyperparameters(values))
    if hparams["seed"] is None:
        hparams["seed"] = experiment.trial_seed(config)
    sections = {
        "hyperparameters": hparams,
        "data": asdict(PARSERS.data(config["data"])),
        "searcher": config["searcher"],
    }
    recipe = {f"{name}.{key}": v for name, values in sections.items() for key, v in values.items()}
    return json.loads(json.dumps(recipe))


class Child:
    """train.py in a process of its own, which is told of a request to stop."""

    def __init__(self) -> None:
        self.asked = False
        self.process: subprocess.Popen | None = None

    def train(self, *words: str) -> int:
        """Run it to its end or its stop; returns its exit status, 0 or 2.

        Raises UserError where it ended in another way.
        """
        if self.asked:
            return 0
        command = [sys.executable, str(HERE / "train.py"), *words]
        log.info("%s", shlex.join(["python", "train.py", *words]))
        # In a session of its own: a Ctrl-C comes from here alone. The second one ends it at once.
        self.process = subprocess.Popen(command, start_new_session=True)
        if self.asked:  # since the last look
            self.process.terminate()
        status = self.process.wait()
        self.process = None
        if self.asked and not 0 <= status <= 128:  # before its first step, or asked twice
            return 0
        if status not in (0, 2):
            ended = f"with status {status}" if status > 0 else f"by {signal.Signals(-status).name}"
            raise UserError(f"train.py ended {ended}; the same command goes on from its checkpoint")
        return status

    @contextlib.contextmanager
    def on_signals(self) -> Iterator["Child"]:
        """Take SIGINT, SIGTERM and SIGHUP as requests to stop, but what `nohup` has ignored."""

        def handle(number: int, frame: FrameType | None) -> None:
            if self.process is not None:
                self.process.terminate()
            elif self.asked:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            self.asked = True

        numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
        heard = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, handle) for number in heard}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
