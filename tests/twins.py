"""Equal runs without any cut, on a busy machine: one hash, or the config does not say the run.

    python -m tests.twins 40 --load 2                  # configs/local.yaml
    python -m tests.twins 10 --load 2 --processes 2    # two gloo processes
    python -m tests.twins 10 --load 2 --config pretrain_local
    python -m tests.twins 10 --load 2 --set data.max_train_examples=500

Each is a shipped config, cut to 120 steps and 200 validation questions. The load is processes that
multiply matrices, one thread each.
"""

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.conftest import ROOT
from tests.same_bits import Case, hashes, train

STEPS = 120


@contextlib.contextmanager
def busy(processes):
    """So many processes that multiply matrices on one thread each."""
    code = "import torch; torch.set_num_threads(1); a = torch.rand(512, 512)\nwhile True: a @ a"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="runs")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside them")
    parser.add_argument("--processes", type=int, default=1, help="of a run")
    parser.add_argument("--config", default="local", help="a name in configs/")
    parser.add_argument("--set", action="append", default=[], help="of train.py")
    args = parser.parse_args()
    os.environ.pop("LOKY_MAX_CPU_COUNT", None)  # as many threads as a user has
    options = [f"--set={text}" for text in ["data.max_validation_examples=200", *args.set]]
    case = Case(args.config, STEPS, processes=args.processes, options=tuple(options))
    seen = collections.Counter()
    with tempfile.TemporaryDirectory() as name, busy(args.load):
        for number in range(1, args.count + 1):
            out = Path(name) / str(number)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{out}.kernels"  # each compiles its own
            train(ROOT, case, out)
            seen[str(hashes(out))] += 1
            print(f"{number:3d}  {len(seen)} hash(es)", flush=True)
    print(f"{args.count} runs of {STEPS} steps, {args.load} busy processes: {len(seen)} hash(es)")
    return 0 if len(seen) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
