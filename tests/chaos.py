"""A soak: cut a local run at random moments, restart it until it ends, compare with an uncut one.

    python -m tests.chaos                               # 30 cuts, one process
    python -m tests.chaos --cuts 10 --processes 2       # two gloo processes
    python -m tests.chaos --cuts 6 --without position   # must find a difference, exit status 1
    python -m tests.chaos --pretraining                 # another workload
    python -m tests.chaos --cuts 10 --processes 4 --lm '{shard: 2, tensor: 2}'

Cuts are SIGKILL of train.py or of torchrun alone, SIGTERM, a spot notice (from a metadata server on
loopback), a full disk (the process's file-size limit), a truncated newest checkpoint, and, with two
processes, one rank killed. Five seconds later no process and no shared memory of the run is left.
Compared bit for bit: parameters, optimizer, schedule, metrics (but for the timings), predictions.
"""

import argparse
import copy
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from detalbert.engine import safe_load  # noqa: F401 (lets torch.load read checkpoints)
from detalbert.training.checkpoints import list_checkpoints
from tests.conftest import ROOT, TINY, TINY_LM, TINY_PRETRAINING, configured, launcher
from tests.fakes.metadata import MetadataServer
from tests.leftovers import Leftovers
from tests.same_bits import differences

OPENED = ("INFO: periods", "INFO: resumed at")  # a start has read what it needs
KINDS = ["SIGKILL", "SIGKILL", "SIGTERM", "spot notice", "full disk", "truncated", "killed rank"]


class Soak:
    """One configuration, trained uncut and cut."""

    def __init__(
        self, folder: Path, processes: int, without: str, steps: int, kind: dict[str, Any] = TINY
    ) -> None:
        self.folder, self.processes, self.without = folder, processes, without
        self.metadata = MetadataServer()
        self.left = Leftovers(str(folder))
        config = configured(
            kind,
            folder / "cache",
            max_steps=steps,  # 60 questions, 8 a step: 3 epochs are 23 steps
            num_workers=1,
            checkpoint_period=4,
            validation_period=10,
            reporting_period=1,
            max_tokens_per_forward=min(256, kind["hyperparameters"]["max_tokens_per_forward"]),
            spot_notice=True,
        )
        config["checkpoint_storage"] = {"save_trial_latest": 3, "save_trial_best": 1}
        (folder / "soak.yaml").write_text(yaml.safe_dump(config))

    def start(self, output: Path, disk: int | None = None) -> subprocess.Popen:
        """The trainer, in a session of its own; `disk` limits the size of a file, in bytes."""
        command = [*launcher(self.processes), "-m", "tests.broken", self.without]
        command += ["--config", str(self.folder / "soak.yaml"), "--output-dir", str(output)]
        metadata = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.metadata.url}

        def limit() -> None:
            if disk is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (disk, disk))

        return subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=limit,
            env={**self.left.env, **metadata},
        )

    def whole(self, output: Path) -> float:
        """To the end, uncut; the seconds of its training."""
        process = self.start(output)
        opened, lines = None, []
        for line in process.stdout:
            lines.append(line)
            if line.startswith(OPENED):
                opened = time.monotonic()
        if process.wait() != 0 or opened is None:
            raise SystemExit(f"the run failed ({process.returncode}):\n{''.join(lines)}")
        return time.monotonic() - opened

    def cut(self, output: Path, kind: str, delay: float) -> str | None:
        """Start, wait `delay` seconds into the training, cut. Returns what the process said last,
        or None if it ended by itself before."""
        small = 100_000 if kind == "full disk" else None
        process = self.start(output, disk=small)
        lines: list[str] = []
        opened = threading.Event()

        def read() -> None:
            for line in process.stdout:
                lines.append(line)
                if line.startswith(OPENED):
                    opened.set()
            opened.set()

        reader = threading.Thread(target=read)
        reader.start()
        opened.wait()
        if kind != "full disk":
            time.sleep(delay)
        ended = process.poll() == 0
        if process.poll() not in (None, 0) and kind != "full disk":
            raise SystemExit(f"it failed by itself, exit {process.returncode}:\n{''.join(lines)}")
        if not ended:
            self._strike(process, kind)
        process.wait()
        self.metadata.notice = None
        left = self.left.after(5)
        self.left.sweep()
        reader.join()
        if left:
            raise SystemExit(f"{kind}: five seconds later there is still {left}")
        if kind == "truncated":
            truncate_newest(output / "checkpoints")
        clean = {"SIGTERM": 0, "spot notice": 0, "full disk": 2}
        if self.processes == 1 and not ended and kind in clean:
            done = any(line.startswith("INFO: best validation") for line in lines)
            if process.returncode != clean[kind] and not done:
                raise SystemExit(f"{kind}: exit {process.returncode}:\n{''.join(lines)}")
        return None if ended else (lines[-1].strip() if lines else "")

    def _strike(self, process: subprocess.Popen, kind: str) -> None:
        if kind == "SIGTERM":
            os.kill(process.pid, signal.SIGTERM)
        elif kind == "spot notice":
            self.metadata.notice = '{"action": "terminate", "time": "2026-01-01T00:02:00Z"}'
        elif kind == "killed rank":
            ranks = psutil.Process(process.pid).children()  # torchrun's
            if ranks:
                random.choice(ranks).kill()
        elif kind != "full disk":
            process.kill()


def truncate_newest(checkpoints: Path) -> None:
    """Cut the newest checkpoint's weights in half, where an older one is left to go back to."""
    found = list_checkpoints(checkpoints)
    if len(found) > 1:
        weights = max(found[-1][1].iterdir(), key=lambda path: path.stat().st_size)
        os.truncate(weights, weights.stat().st_size // 2)


def soak(
    cuts: int,
    processes: int,
    without: str,
    seed: int,
    steps: int,
    kinds: list[str] | None = None,
    config: dict[str, Any] = TINY,
) -> list[str]:
    """Run uncut, run with `cuts` cuts, and return the differences between the two ends."""
    dice = random.Random(seed)
    kinds = kinds or (KINDS if processes > 1 else KINDS[:-1])
    with tempfile.TemporaryDirectory() as name:
        trial = Soak(Path(name), processes, without, steps, config)
        uncut, chopped = Path(name) / "uncut", Path(name) / "chopped"
        seconds = trial.whole(uncut)
        print(f"uncut: {seconds:.0f} s", flush=True)
        for number in range(1, cuts + 1):
            kind = dice.choice(kinds)
            last = trial.cut(chopped, kind, dice.uniform(0, 1.5 * seconds / (cuts + 1)))
            if last is None and number == 1:
                raise SystemExit("the run ended before the first cut: more --steps")
            if last is None:
                print(f"the run ended after {number - 1} cuts, of {cuts}: more --steps")
                break
            newest = list_checkpoints(chopped / "checkpoints")[-1:]
            at = newest[0][0] if newest else 0
            print(f"cut {number:3d}  {kind:12s} newest checkpoint {at:4d}  {last[:90]}", flush=True)
        trial.whole(chopped)
        trial.metadata.close()
        if left := [str(path) for path in chopped.rglob(".*") if path.name != ".lock"]:
            raise SystemExit(f"half-written, and never removed: {left}")
        return differences(uncut, chopped)


def chosen(pretraining: bool, layout: str | None) -> dict[str, Any]:
    config = copy.deepcopy(TINY_PRETRAINING if pretraining else TINY_LM if layout else TINY)
    if pretraining:
        config["hyperparameters"]["span_fraction"] = 0.3
    if layout:
        config["hyperparameters"]["layout"] = yaml.safe_load(layout)
    return config


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--without", default="none", choices=["none", "rng", "order", "position"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--pretraining", action="store_true", help="instead of fine-tuning")
    parser.add_argument("--lm", metavar="LAYOUT", help="a language model at this layout")
    arguments = parser.parse_args()
    given = {key: vars(arguments)[key] for key in "cuts processes without seed steps".split()}
    found = soak(**given, config=chosen(arguments.pretraining, arguments.lm))
    print(f"different: {', '.join(found)}" if found else "identical to the uncut run")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
