"""A day with a GPU: all that can be measured on one in eight minutes, with one command.

make gpu                                               # or bash benchmarks/gpu.sh --output FOLDER
bash benchmarks/gpu.sh --device cpu                    # the same stages, small, in some minutes

Each stage of gpu_day.yaml is a process with a limit in seconds and a file of its own in the output
folder, complete or absent: a day that is cut short keeps what it had. Stages stand in the order of
their worth. Peak memory and profiles are taken in the processes of `step`, after its speeds: to
start and compile each model once more would take two minutes.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import yaml

from cluster.flags import number
from detalbert import files
from detalbert.command import Parser
from detalbert.errors import UserError
from detalbert.log import fail

ROOT = Path(__file__).resolve().parents[1]
STAGES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
SECONDS = STAGES.pop("seconds")
LATEST = 10  # seconds that must be left to begin a stage


def run_day(args: Namespace) -> int:
    """Run all stages; return 0, 1 if one did not end well, 2 if the machine lacks something."""
    args.output.mkdir(parents=True, exist_ok=True)
    for name in STAGES:  # another day's results would pass for this one's
        (args.output / f"{name}.json").unlink(missing_ok=True)
    end = time.monotonic() + args.seconds
    worst = 0
    for name, stage in STAGES.items():
        began = time.monotonic()
        # With more time than on an H100 each stage has more.
        limit = min(stage["seconds"] * args.seconds / SECONDS, end - began)
        words = stage["command"].split() + args.words
        if args.device == "cpu":
            words += stage["cpu"].split()
        status = run_stage([*words, "--json", str(args.output / f"{name}.json")], args, limit)
        if name == "check" and status != 0:
            return 2
        worst = max(worst, int(status != 0))
        result = {0: "done", None: "stopped"}.get(status, "failed")
        print(f"{name}: {result} after {time.monotonic() - began:.0f} s", flush=True)
    print(f"next: python -m benchmarks gpu-render --day {args.output}")
    return worst


def run_stage(words: list[str], args: Namespace, seconds: float) -> int | None:
    """Return the status of a process of benchmarks; None if it was stopped, with its children."""
    if seconds < LATEST:
        return None
    # The tests hide all GPUs from themselves unless the variable is there.
    visible = "" if args.device == "cpu" else os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *words],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": visible, "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # The session is its own. Whoever interrupts the day ends the stage, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        files.sweep(args.output, r".*\.json")  # a killed process leaves its temporary file


def main(arguments: list[str] | None = None) -> int:
    """Return the status of `run_day`; 2 for a user's mistake, which is one line on stderr."""
    parser = Parser(prog="benchmarks.gpu_day", description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, default=ROOT / "runs" / "gpu", help="folder (default: runs/gpu)")
    add("--device", choices=["cuda", "cpu"], default="cuda", help="default: cuda")
    add(
        "--seconds",
        type=number("--seconds", 1, 86400),
        default=SECONDS,
        help=f"of all stages, whose limits grow with it (default: {SECONDS})",
    )
    add("words", nargs="*", help="further flags of all stages, after --: -- --data FOLDER")
    try:
        return run_day(parser.parse_args(arguments))
    except UserError as error:
        return fail("gpu", error)


if __name__ == "__main__":
    sys.exit(main())
