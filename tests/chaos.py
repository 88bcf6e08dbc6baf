"""A soak: cut a local run at random moments, restart it until it ends, compare with an uncut one.

    python -m tests.chaos                               # 30 cuts, one process
    python -m tests.chaos --cuts 10 --processes 2       # two gloo processes
    python -m tests.chaos --cuts 6 --without position   # must find a difference, exit status 1
    python -m tests.chaos --pretraining                 # another workload
    python -m tests.chaos --pretraining --family deberta-v2
    python -m tests.chaos --cuts 10 --processes 4 --lm '{shard: 2, tensor: 2}'

Cuts are SIGKILL of train.py or of torchrun alone, SIGTERM, a spot notice (from a metadata server on
loopback), a full disk (a limit on the size of files), a truncated newest checkpoint, and, with two
processes, one rank killed. Five seconds later no process and no shared memory of the run is left.
Compared bit for bit: parameters, optimizer, schedule, metrics (but for the timings), predictions.
"""

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from detalbert.engine import safe_load  # noqa: F401
from tests.conftest import ROOT, launcher, settings
from tests.fakes.masked import FAMILIES
from tests.fakes.metadata import MetadataServer
from tests.fakes.runs import steps_of
from tests.leftovers import Started
from tests.same_bits import differences

OPENED = ("INFO: periods", "INFO: resumed at")  # a start has read what it needs
STATUSES = {"SIGTERM": 143, "spot notice": 143, "full disk": 2}  # of an orderly end, by cut
KINDS = ["SIGKILL", "SIGKILL", "SIGTERM", "spot notice", "full disk", "truncated", "killed rank"]


class Soak:
    """One configuration, trained uncut and cut; `python` starts it."""

    def __init__(self, folder, words, processes, without, python):
        self.log = folder / "log"
        self.processes = processes
        self.metadata = MetadataServer()
        options = settings(
            num_workers=1,
            spot_notice=True,
            checkpoint_period=4,
            validation_period=10,
            reporting_period=1,
        )
        options += ["--set", "checkpoint_storage={save_trial_latest: 3, save_trial_best: 1}"]
        options += ["--set", f"data.cache_dir={folder}/cache"]
        self.command = [*launcher(processes, python), "-m", "tests.broken", without]
        self.command += [*words, *options, "--output-dir"]

    def start(self, output):
        """The trainer, as soon as it trains."""
        service = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.url}
        run = Started([*self.command, output], self.log, **service)
        run.wait_for(*OPENED)
        return run

    def whole(self, output):
        """To the end, uncut; the seconds of its training."""
        run = self.start(output)
        opened = time.monotonic()
        if run.main.wait() != 0:
            raise SystemExit(f"the run failed ({run.main.returncode}):\n{run.said}")
        return time.monotonic() - opened

    def cut(self, output, kind, delay):
        """Start, wait `delay` seconds into the training, cut. Returns what the process said last,
        or None if it ended by itself before."""
        run = self.start(output)
        time.sleep(delay)
        ended = run.main.poll() == 0
        if not ended:
            self._strike(run, kind)
        left = run.left()
        self.metadata.notice = None
        if left:
            raise SystemExit(f"{kind}: five seconds later there is still {left}")
        if kind == "truncated":
            truncate_newest(output / "checkpoints")
        complete = "\nINFO: best validation" in run.said
        status = run.main.returncode
        if self.processes == 1 and not complete and status != STATUSES.get(kind, -9):
            raise SystemExit(f"{kind}: exit {status}:\n{run.said}")
        return None if ended else run.said.splitlines()[-1].strip()

    def _strike(self, run, kind):
        if kind == "SIGTERM":
            os.kill(run.main.pid, signal.SIGTERM)
        elif kind == "spot notice":
            self.metadata.notice = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
        elif kind == "full disk":
            for process in run.processes():
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        elif kind == "killed rank":
            for rank in psutil.Process(run.main.pid).children()[:1]:  # torchrun's
                rank.kill()
        else:
            run.main.kill()


def truncate_newest(checkpoints):
    """Cut the newest checkpoint's weights in half, where an older one is left to go back to."""
    folders = sorted(checkpoints.glob("step-*"))
    if len(folders) > 1:
        weights = max(folders[-1].iterdir(), key=lambda path: path.stat().st_size)
        os.truncate(weights, weights.stat().st_size // 2)


def soak(
    cuts,
    processes=1,
    without="none",
    seed=0,
    steps=400,
    kinds=None,
    workload=None,
    python=sys.executable,
):
    """Run uncut, run with `cuts` cuts, and return the differences between the two ends."""
    dice = random.Random(seed)
    kinds = kinds or (KINDS if processes > 1 else KINDS[:-1])
    with tempfile.TemporaryDirectory() as folder:
        uncut = Path(folder) / "uncut"
        chopped = Path(folder) / "chopped"
        words = [*(workload or words_of()), *settings(max_steps=steps)]
        trial = Soak(Path(folder), words, processes, without, python)
        seconds = trial.whole(uncut)
        print(f"uncut: {seconds:.0f} s", flush=True)
        for number in range(1, cuts + 1):
            kind = dice.choice(kinds)
            delay = dice.uniform(0, 1.5 * seconds / (cuts + 1))
            last_line = trial.cut(chopped, kind, delay)
            if last_line is None and number == 1:
                raise SystemExit("the run ended before the first cut: more --steps")
            if last_line is None:
                print(f"the run ended after {number - 1} cuts, of {cuts}: more --steps")
                break
            step = max(steps_of(chopped), default=0)
            state = f"newest checkpoint {step:4d}  {last_line[:90]}"
            print(f"cut {number:3d}  {kind:12s} {state}", flush=True)
        trial.whole(chopped)
        trial.metadata.close()
        hidden = {path.name for path in chopped.rglob(".*")}
        half_written = hidden - {".lock", ".written.json"}
        if half_written:
            raise SystemExit(f"half-written, and never removed: {sorted(half_written)}")
        return differences(uncut, chopped)


def words_of(pretraining=False, layout=None, family=None):
    """The config of a workload, as arguments of train.py; `family` is one to pretrain."""
    if layout:
        name = "language_model"
        options = ["--set", f"hyperparameters.layout={layout}"]
    elif pretraining:
        name = "pretraining"
        options = settings(max_tokens_per_forward=256)
        if family is None:
            options += settings(span_fraction=0.3)
        else:
            options += settings(model_config=FAMILIES[family].keys, optimizer="adamw")
    else:
        name = "finetuning"
        options = settings(max_tokens_per_forward=256)
    return ["--config", f"{ROOT}/tests/configs/{name}.yaml", *options]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--without", default="none", choices=["none", "rng", "order", "position"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pretraining", action="store_true", help="instead of fine-tuning")
    parser.add_argument("--family", choices=FAMILIES, help="to pretrain, instead of ALBERT")
    parser.add_argument("--lm", metavar="LAYOUT", help="a language model at this layout")
    args = parser.parse_args()
    different = soak(
        cuts=args.cuts,
        processes=args.processes,
        without=args.without,
        seed=args.seed,
        steps=args.steps,
        workload=words_of(args.pretraining, args.lm, args.family),
    )
    if different:
        print(f"different: {', '.join(different)}")
        return 1
    print("identical to the uncut run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
