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
from typing import Any, NamedTuple

import torch

from detalbert.engine import safe_load  # noqa: F401 (lets torch.load read checkpoints)
from detalbert.integrity import checksum
from detalbert.training.timeline import list_checkpoints
from tests.conftest import ROOT, launcher, settings
from tests.fakes.runs import metrics, official

PARTS = ("models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict")


class Case(NamedTuple):
    """A run: a shipped config, its steps, its processes and what else is set."""

    config: str
    steps: int
    processes: int = 1
    more: tuple[str, ...] = ()


def split(shard: int, tensor: int) -> tuple[str, ...]:
    return "--set", f"hyperparameters.layout={{shard: {shard}, tensor: {tensor}}}"


CASES = {
    "local": Case("local", 200),
    "local, two processes": Case("local", 200, processes=2),
    "pretrain_local": Case("pretrain_local", 200),
    "lm_local": Case("lm_local", 30),
    "lm_local, 2 x 2": Case("lm_local", 30, processes=4, more=split(2, 2)),
}


def train(checkout: Path, case: Case, output: Path, *more: str) -> None:
    """Train `case` with the code of `checkout`, unless `output` has such a run already."""
    if (output / "done").is_file():
        return
    arguments = ["--config", f"configs/{case.config}.yaml", "--output-dir", str(output)]
    periods = {"checkpoint_period": case.steps // 2, "validation_period": case.steps}
    arguments += settings(max_steps=case.steps, **periods)
    arguments += ["--set", f"data.cache_dir={output.parent}/cache", *case.more, *more]
    run(checkout, [*launcher(case.processes)[1:], "train.py", *arguments])
    (output / "done").touch()


def run(checkout: Path, words: list[str]) -> str:
    """Standard output of Python with these words, in `checkout`."""
    done = subprocess.run([sys.executable, *words], cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def hashes(output: Path) -> dict[str, str]:
    """SHA-256 by part of a run's last checkpoint, of its scores and of what it predicted."""
    found = of_checkpoint(list_checkpoints(output / "checkpoints")[-1][1])
    for name in ("predictions.json", "null_odds.json"):
        if (output / name).is_file():  # fine-tuning leaves them
            found[name] = checksum(output / name)
    return found | {key: of_value(official(metrics(output)[key])) for key in ("best", "last")}


def unequal(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """The names of what is not the same, or on one side only."""
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def differences(one: Path, other: Path) -> list[str]:
    """The names of what differs between the ends of two runs."""
    return unequal(hashes(one), hashes(other))


def of_checkpoint(folder: Path) -> dict[str, str]:
    """SHA-256 by part: weights, optimizer and schedule, or the files of a sharded model."""
    files = {path.name: checksum(path) for path in sorted(folder.glob("*.distcp"))}
    if files:
        return files
    state = torch.load(folder / "state_dict.pth", weights_only=True)
    return {part: of_value(state[part]) for part in PARTS}


def of_value(value: Any) -> str:
    """SHA-256 of nested dicts and lists of tensors, numbers and text."""
    if isinstance(value, torch.Tensor):
        said = f"{value.dtype} {tuple(value.shape)}".encode() + value.cpu().numpy().tobytes()
    elif isinstance(value, dict):
        said = repr([(str(key), of_value(value[key])) for key in sorted(value, key=str)]).encode()
    elif isinstance(value, (list, tuple)):
        said = repr([of_value(item) for item in value]).encode()
    else:
        said = repr(value).encode()
    return hashlib.sha256(said).hexdigest()


def used(checkout: Path, before: Path, kept: Path) -> dict[str, str]:
    """What `checkout` predicts from and exports of the runs in `before`, by SHA-256."""
    kept.mkdir(parents=True, exist_ok=True)
    answers = ["--context", "The Zanto was loaded with pottery.", "--question", "What has it?"]
    prompt, found = ["--prompt", "The", "--max-new-tokens", "9"], {}
    for name, words in {"local": answers, "lm_local": prompt}.items():
        start, target = ["predict.py", "--model", str(before / name)], kept / name
        found[name] = of_value(run(checkout, [*start, *words]))
        if not target.is_dir():
            run(checkout, [*start, "--export", str(target)])
        files = [path for path in target.rglob("*") if path.is_file()]
        same = (path for path in files if path.name not in ("README.md", "sums.json"))
        found |= {f"{name}: {path.name}": checksum(path) for path in same}
    return found


def report(name: str, one: dict[str, str], other: dict[str, str]) -> int:
    """Print and count what differs."""
    found = unequal(one, other)
    said = f"different: {', '.join(found)}" if found else f"{len(one)} parts equal"
    print(f"{name:32s} {said}", flush=True)
    return len(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--keep", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--only-before", action="store_true", help="train the other's runs alone")
    args = parser.parse_args()
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"  # the number of threads changes rounding
    kept, different = args.keep.absolute(), 0
    for name, case in CASES.items():
        theirs, ours, resumed = (kept / side / name for side in ("before", "after", "resumed"))
        train(args.before, case, theirs)
        if args.only_before:
            continue
        train(ROOT, case, ours)
        different += report(name, hashes(theirs), hashes(ours))
        half = theirs / "checkpoints" / f"step-{case.steps // 2:08d}"
        train(ROOT, case, resumed, "--resume", str(half))
        different += report(f"{name}, resumed", hashes(theirs), hashes(resumed))
    if not args.only_before:
        sides = {"before": args.before, "after": ROOT}
        both = [used(at, kept / "before", kept / f"use-{side}") for side, at in sides.items()]
        different += report("predicted and exported", *both)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
