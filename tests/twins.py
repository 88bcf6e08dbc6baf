"""Equal runs without any cut, on a busy machine: one hash, or the config does not say the run.

    python -m tests.twins 40 --load 2                  # configs/local.yaml
    python -m tests.twins 10 --load 2 --processes 2    # two gloo processes
    python -m tests.twins 10 --load 2 --config pretrain_local
    python -m tests.twins 10 --load 2 --bert           # a BERT with dropout
    python -m tests.twins 3 --before ../before         # the first by another checkout's code

Each is a shipped config, cut to 120 steps and 200 validation questions. The load is processes that
multiply matrices, one thread each. With --before the last resumes half of the first.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, launcher, settings
from tests.same_bits import hashes

STEPS = 120
BERT = {"model_type": "bert", "hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
BERT |= {"intermediate_size": 512, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


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


def words(args: argparse.Namespace) -> list[Any]:
    """The command of a run, but for its folder."""
    data = ["--set", "data.max_validation_examples=200"]
    if args.bert:
        data += ["--set", "data.tokenizer=embedded/albert-tiny"]
        data += settings(model=None, model_config=BERT)
    data += ["--set", "checkpoint_storage.save_trial_latest=9", "--config"]
    steps = settings(max_steps=STEPS, checkpoint_period=STEPS // 2)
    return [*launcher(args.processes), "train.py", *steps, *data, f"configs/{args.config}.yaml"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="runs")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside them")
    parser.add_argument("--processes", type=int, default=1, help="of a run")
    parser.add_argument("--config", default="local", help="a name in configs/")
    parser.add_argument("--bert", action="store_true", help="train a BERT with dropout")
    parser.add_argument("--before", type=Path, help="another checkout")
    args = parser.parse_args()
    os.environ.pop("LOKY_MAX_CPU_COUNT", None)  # as many threads as a user has
    seen = set()
    with tempfile.TemporaryDirectory() as name, busy(args.load):
        for number in range(args.count):
            out, more = Path(name) / str(number), []
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{out}.kernels"  # each compiles its own
            if args.before and number == args.count - 1 > 0:
                more = ["--resume", f"{name}/0/checkpoints/step-{STEPS // 2:08d}"]
            command = [*words(args), "--output-dir", out, "--set", f"data.cache_dir={name}/cache"]
            checkout = args.before if args.before and number == 0 else ROOT
            subprocess.run([*command, *more], cwd=checkout, check=True)
            seen.add(str(hashes(out)))
            print(f"{number + 1:3d}  {len(seen)} hash(es)", flush=True)
    print(f"{args.count} runs of {STEPS} steps, {args.load} busy processes: {len(seen)} hash(es)")
    return 0 if len(seen) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
