"""Compare the results of this checkout with those of another one, bit for bit, on this machine.

    git worktree add ../before 596c121
    python -m tests.same_bits ../before --keep /tmp/bits      # some 15 minutes on two cores

Both train the shipped local configs from their start. Then this one resumes, predicts from
and exports the other's checkpoints. `--keep` leaves the runs there, and takes those that are there.
"""

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file

from detalbert.engine import safe_load  # noqa: F401
from detalbert.sums import checksum
from tests.conftest import ROOT, launcher, settings
from tests.fakes.runs import metrics, newest, official

PARTS = ("models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict")


class Case(NamedTuple):
    """A run: a shipped config, its steps, its processes and what else is set."""

    config: str
    steps: int
    processes: int = 1
    options: tuple[str, ...] = ()  # of train.py


SPLIT = ("--set", "hyperparameters.layout={shard: 2, tensor: 2}")
CASES = {
    "local": Case("local", 200),
    "local, two processes": Case("local", 200, processes=2),
    "pretrain_local": Case("pretrain_local", 200),
    "lm_local": Case("lm_local", 30),
    "lm_local, 2 x 2": Case("lm_local", 30, processes=4, options=SPLIT),
}


def train(checkout, case, output, *options):
    """Train `case` with the code of `checkout`, unless `output` has such a run already."""
    if (output / "done").is_file():
        return
    arguments = ["--config", f"configs/{case.config}.yaml", "--output-dir", str(output)]
    arguments += settings(
        max_steps=case.steps,
        checkpoint_period=case.steps // 2,
        validation_period=case.steps,
    )
    arguments += ["--set", f"data.cache_dir={output.parent}/cache", *case.options, *options]
    run(checkout, [*launcher(case.processes)[1:], "train.py", *arguments])
    (output / "done").touch()


def run(checkout, words):
    """Standard output of Python with these words, in `checkout`."""
    ended = subprocess.run([sys.executable, *words], cwd=checkout, capture_output=True, text=True)
    if ended.returncode != 0:
        raise SystemExit(f"{checkout}: {' '.join(words)}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def hashes(output):
    """SHA-256 by part of a run's last checkpoint, of its scores and of what it predicted."""
    sums = of_checkpoint(newest(output))
    for name in ("predictions.json", "null_odds.json"):
        if (output / name).is_file():  # fine-tuning leaves them
            sums[name] = checksum(output / name)
    for name in ("best", "last"):
        sums[name] = of_value(official(metrics(output)[name]))
    return sums


def unequal(sums, others):
    """The names of what is not the same, or on one side only."""
    names = sums.keys() | others.keys()
    return sorted(name for name in names if sums.get(name) != others.get(name))


def differences(output, other_output):
    """The names of what differs between the ends of two runs."""
    return unequal(hashes(output), hashes(other_output))


def of_checkpoint(folder):
    """SHA-256 by part: weights, optimizer and schedule, or the files of a sharded model."""
    shards = sorted(folder.glob("shard-*.safetensors"))
    if shards:
        return {path.name: of_value(load_file(path)) for path in shards}
    state = torch.load(folder / "state_dict.pth", weights_only=True)
    return {part: of_value(state[part]) for part in PARTS}


def of_value(value):
    """SHA-256 of nested dicts and lists of tensors, numbers and text."""
    if isinstance(value, torch.Tensor):
        header = f"{value.dtype} {tuple(value.shape)}".encode()
        content = header + value.cpu().numpy().tobytes()
    elif isinstance(value, dict):
        items = [(str(key), of_value(value[key])) for key in sorted(value, key=str)]
        content = repr(items).encode()
    elif isinstance(value, (list, tuple)):
        content = repr([of_value(item) for item in value]).encode()
    else:
        content = repr(value).encode()
    return hashlib.sha256(content).hexdigest()


QUESTION = ["--context", "The Zanto was loaded with pottery.", "--question", "What has it?"]
USED = ("local", "lm_local")  # runs
NOT_COMPARED = ("README.md", "sums.json")  # they name the version


def use(checkout, runs, folder):
    """What `checkout` predicts from and exports of runs, by SHA-256; exports stay in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    sums = {}
    for name in USED:
        predict = ["predict.py", "--model", str(runs / name)]
        if name == "local":
            sums[name] = of_value(run(checkout, [*predict, *QUESTION]))
        exported = folder / name
        if not exported.is_dir():
            run(checkout, [*predict, "--export", str(exported)])
        for path in exported.rglob("*"):
            if path.is_file() and path.name not in NOT_COMPARED:
                sums[f"{name}: {path.name}"] = checksum(path)
    return sums


def report(name, sums, others):
    """Print and count what differs."""
    names = unequal(sums, others)
    outcome = f"different: {', '.join(names)}" if names else f"{len(sums)} parts equal"
    print(f"{name:32s} {outcome}", flush=True)
    return len(names)


def compare_case(name, case, folder):
    """Count what differs in a run of this checkout, and in one that it resumes."""
    theirs = folder / "before" / name
    ours = folder / "after" / name
    resumed = folder / "resumed" / name
    train(ROOT, case, ours)
    different = report(name, hashes(theirs), hashes(ours))
    half = theirs / "checkpoints" / f"step-{case.steps // 2:08d}"
    train(ROOT, case, resumed, "--resume", str(half))
    return different + report(f"{name}, resumed", hashes(theirs), hashes(resumed))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--keep", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only-before", action="store_true", help="train the other's runs alone")
    args = parser.parse_args()
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # the number of threads changes rounding
    folder = args.keep.absolute()
    runs = folder / "before"
    different = 0
    for name, case in CASES.items():
        train(args.before, case, runs / name)
        if not args.only_before:
            different += compare_case(name, case, folder)
    if not args.only_before:
        theirs = use(args.before, runs, folder / "use-before")
        ours = use(ROOT, runs, folder / "use-after")
        different += report("predicted and exported", theirs, ours)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
