"""Equal runs without any cut, on a busy machine: one hash, or the config does not say the run.

    python -m tests.chaos --pairs 40 --load 2                  # configs/local.yaml
    python -m tests.chaos --pairs 10 --load 2 --processes 2    # two gloo processes
    python -m tests.chaos --pairs 10 --load 2 --pretraining    # configs/pretrain_local.yaml
    python -m tests.chaos --pairs 10 --load 2 --bert           # a BERT with dropout

Each is a shipped config, cut to 120 steps and 200 validation questions. The load is processes that
multiply matrices, one thread each.
"""

import collections
import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from detalbert.engine import safe_load  # noqa: F401 (lets torch.load read checkpoints)
from detalbert.training.checkpoints import list_checkpoints
from tests.conftest import ROOT, launcher, settings

STEPS = 120
BERT = {"model_type": "bert", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
BERT |= {"intermediate_size": 512, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def compare(count: int, load: int, processes: int, pretraining: bool, bert: bool) -> int:
    """Run `count` twins, print their hashes; returns the exit status, 0 where they are one."""
    config = "pretrain_local" if pretraining else "local"
    changes = settings(max_steps=STEPS)
    if bert:
        changes += settings(model=None, model_config=BERT)
        changes += ["--set", "data.tokenizer=embedded/albert-tiny"]
    hashes: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as name, busy(load):
        changes += ["--set", f"data.cache_dir={name}/cache"]
        changes += ["--set", "data.max_validation_examples=200"]
        for number in range(1, count + 1):
            out = Path(name) / str(number)
            began = time.monotonic()
            threads = twin(ROOT / "configs" / f"{config}.yaml", out, processes, changes)
            digest = hash_of(out)
            hashes[digest] += 1
            seconds = time.monotonic() - began
            print(f"{number:3d}  {digest[:16]}  {seconds:5.1f} s  threads {threads}", flush=True)
    print(f"{count} runs of {STEPS} steps, {load} busy processes: {len(hashes)} hash(es)")
    return 0 if len(hashes) == 1 else 1


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that multiply matrices on one thread each."""
    code = "import torch; torch.set_num_threads(1); a = torch.rand(512, 512)\nwhile True: a @ a"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def twin(config: Path, output: Path, processes: int, changes: list[str]) -> str:
    """One run; returns what it says of its threads."""
    command = [*launcher(processes), str(ROOT / "train.py"), "--config", str(config)]
    env = {k: v for k, v in os.environ.items() if k != "LOKY_MAX_CPU_COUNT"}  # as a user has it
    env["TORCHINDUCTOR_CACHE_DIR"] = str(output.with_suffix(".kernels"))  # each compiles its own
    command = [*command, "--output-dir", str(output), *changes]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"a run failed ({done.returncode}):\n{done.stderr}")
    lines = [line for line in done.stderr.splitlines() if line.startswith("INFO: threads ")]
    return lines[0].split(maxsplit=2)[2]


def hash_of(output: Path) -> str:
    """SHA-256 of weights, optimizer, schedule, scores and predictions at a run's end."""
    digest = hashlib.sha256()
    path = list_checkpoints(output / "checkpoints")[-1][1] / "state_dict.pth"
    state = torch.load(path, weights_only=True)
    for part in ("models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict"):
        add_to(digest, state[part])
    metrics = json.loads((output / "metrics.json").read_text())
    add_to(digest, [metrics["best"], metrics["last"]])
    for name in ("predictions.json", "null_odds.json"):
        if (output / name).is_file():
            digest.update((output / name).read_bytes())
    return digest.hexdigest()


def add_to(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.cpu().numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            add_to(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            add_to(digest, item)
    else:
        digest.update(repr(value).encode())
