"""A day with a GPU: all that can be measured on one in eight minutes, with one command.

make gpu                                               # or bash benchmarks/gpu.sh --output FOLDER
bash benchmarks/gpu.sh --device cpu --tiny             # the same stages here, in some minutes

Each stage is a process with a limit in seconds and a file of its own in the output folder, complete
or absent: a day that is cut short keeps what it had. Stages stand in the order of their worth.
Peak memory and profiles are taken in the processes of `step`, after its speeds: to start and
compile each model once more would take two minutes.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from pathlib import Path
from typing import IO, NamedTuple

from cluster.flags import Parser, number
from detalbert import atomic
from detalbert.errors import UserError
from detalbert.log import fail

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "runs" / "gpu"
# What `make gpu-wheels` brings: wheels, and the data where they are beside the repository.
CARRIED = ROOT / ".gpu"
BUDGETS = (4096, 8192, 16384, 32768)  # tokens per forward
TINY_BUDGETS = (512, 1024)
SECONDS = 480  # of a day
LATEST = 10  # seconds that must be left to begin a stage


class Stage(NamedTuple):
    """A process of the day, and the name of its file."""

    name: str
    seconds: int  # after which it is stopped; on an H100 it should take two thirds of it
    arguments: tuple[str, ...]  # of python -m benchmarks


# A step has at least the tokens of the largest budget; the text is a part of botocore's.
TEXT = ("--examples", "16000")
STAGES = (
    Stage("step-finetuning", 100, ("step", "--windows", "192")),
    Stage("step-pretraining", 60, ("step", "--workload", "pretraining", "--windows", "64", *TEXT)),
    Stage(
        "step-lm-125m",
        60,
        ("step", "--workload", "lm", "--shape", "125m", "--windows", "32", *TEXT),
    ),
    Stage(
        "step-lm-1b", 90, ("step", "--workload", "lm", "--shape", "1b", "--windows", "16", *TEXT)
    ),
    Stage("finetune", 75, ("finetune", "--examples", "4000", "--repeats", "1")),
    Stage("predict", 75, ("predict", "--examples", "4000", "--repeats", "1")),
)
TINY = {
    "step-finetuning": ("--shape", "tiny", "--windows", "8"),
    "step-pretraining": ("--shape", "tiny", "--windows", "16"),
    "step-lm-125m": ("--shape", "tiny", "--windows", "40"),
    "step-lm-1b": ("--shape", "tiny", "--windows", "40"),
    "finetune": ("--examples", "12"),
    "predict": ("--examples", "12"),
}
CHECK_SECONDS = 45
TESTS_SECONDS = 180
GPU_TESTS = ("-m", "gpu", "tests/engine/test_on_a_gpu.py")
CPU_TESTS = ("tests/engine/test_watched.py",)


class Ended(NamedTuple):
    """How a process ended."""

    status: int | None  # None: it was stopped
    output: str


class Day:
    """The stages of a day, one after the other.

    Args:
        folder: for the results.
        seconds: of all stages together.
        device: cuda or cpu.
    """

    def __init__(self, folder: Path, seconds: float, device: str) -> None:
        self.folder = folder
        self.device = device
        self.end = time.monotonic() + seconds
        self.scale = seconds / SECONDS  # of the stages' limits
        self.failed: list[str] = []  # stages that were cut, failed or left out
        self.env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        if device == "cpu":
            self.env["CUDA_VISIBLE_DEVICES"] = ""

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def run(self, name: str, seconds: float, arguments: list[str]) -> str:
        """Run a stage within its limit and the day's; print how it ended, return its output."""
        limit = min(self.scale * seconds, self.end - time.monotonic())
        if limit < LATEST:
            self.failed.append(name)
            print(f"{name}: left out, the day's time is over", flush=True)
            return ""
        began = time.monotonic()
        ended = self.execute(arguments, limit)
        took = f"{time.monotonic() - began:.0f} s"
        if ended.status == 0:
            print(f"{name}: done, {took}", flush=True)
            return ended.output
        self.failed.append(name)
        result = "stopped at its limit" if ended.status is None else f"status {ended.status}"
        print(f"{name}: {result}, {took}\n{ended.output[-1500:]}", flush=True)
        return ended.output

    def execute(self, arguments: list[str], seconds: float) -> Ended:
        """Run Python with these arguments in the repository's root, for at most `seconds`."""
        with tempfile.TemporaryFile("w+") as output:
            status = run_limited([sys.executable, *arguments], self.env, seconds, output)
            output.seek(0)
            text = output.read()
        # A process that was killed leaves its temporary file.
        atomic.sweep(self.folder, r".*\.json")
        return Ended(status, text)


def run_limited(
    command: list[str], env: dict[str, str], seconds: float, output: IO[str]
) -> int | None:
    """Return the status of a process; None if it ran longer and was killed, with its children."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # Its session is its own. Whoever interrupts the day ends the stage, too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check(day: Day) -> None:
    """Write what the machine has. Raises UserError if it lacks something."""
    arguments = ["-m", "benchmarks.gpu_check", str(day.file("check")), day.device]
    ended = day.execute(arguments, CHECK_SECONDS)
    if ended.status != 0:
        lines = ended.output.split("\n")
        raise UserError(f"the check of the machine failed ({' '.join(lines[-3:])})")
    machine = json.loads(day.file("check").read_text())
    if machine["lacks"]:
        day.file("check").unlink()
        raise UserError(
            f"this machine lacks {', and '.join(machine['lacks'])}",
            cure="docs/speed.md says what a day with a GPU needs",
        )
    device = machine["device"]
    print(f"check: {device['name']}, torch {machine['versions']['torch']}", flush=True)


def test(day: Day) -> None:
    """Run the tests of a GPU, and write which passed: those that ran before a stop, too."""
    tests = GPU_TESTS if day.device == "cuda" else CPU_TESTS
    # Two lines of words per test, with the bar of progress: its name and how it ended.
    arguments = ["-m", "pytest", "-vv", "--color=no", "-p", "no:cacheprovider", "-n", "0", *tests]
    with tempfile.TemporaryDirectory() as base:
        output = day.run("tests", TESTS_SECONDS, [*arguments, "--basetemp", f"{base}/tests"])
    outcomes = dict(re.findall(r"::(\S.*?) (PASSED|FAILED|ERROR|SKIPPED)", output))
    failures = [line for line in output.splitlines() if line.startswith("E  ")]
    atomic.write_json(
        day.file("tests"),
        {"outcomes": outcomes, "failures": failures[:40], "complete": "tests" not in day.failed},
    )


def measure(day: Day, args: Namespace) -> None:
    """Run the stages that measure, each of which writes its own file."""
    data = ["--data", str(args.data), "--tokenizer", str(args.tokenizer)]
    budgets = TINY_BUDGETS if args.tiny else BUDGETS
    for stage in STAGES:
        arguments = [
            "-m",
            "benchmarks",
            *stage.arguments,
            *data,
            "--json",
            str(day.file(stage.name)),
        ]
        if stage.arguments[0] == "step":
            arguments += ["--budgets", *map(str, budgets)]
        if args.tiny:
            arguments += ["--examples", "60", "--repeats", "1", *TINY[stage.name]]
        day.run(stage.name, stage.seconds, arguments)


def run_day(args: Namespace) -> int:
    """Run all stages; return 0, or 1 if one failed, was stopped or left out."""
    args.output.mkdir(parents=True, exist_ok=True)
    # Results of another day would pass for this one's.
    for name in ("check", "tests", *(stage.name for stage in STAGES)):
        (args.output / f"{name}.json").unlink(missing_ok=True)
    day = Day(args.output, seconds=args.seconds, device=args.device)
    check(day)
    test(day)
    measure(day, args)
    print(f"results: {args.output}; next: python -m benchmarks gpu-render --day {args.output}")
    return 1 if day.failed else 0


def parse_arguments(arguments: list[str] | None) -> Namespace:
    """Return the flags of a day."""
    parser = Parser(prog="benchmarks.gpu_day", description=__doc__)
    add = parser.add_argument
    add("--output", type=Path, default=RUNS, metavar="FOLDER", help="for results (runs/gpu)")
    add("--device", choices=["cuda", "cpu"], default="cuda", help="default: cuda")
    add("--tiny", action="store_true", help="smallest models and few steps, to try the stages")
    add(
        "--seconds",
        type=number("--seconds", 1, 86400),
        default=SECONDS,
        help=f"after which no stage runs ({SECONDS}); the limits of stages grow with it",
    )
    add("--data", type=Path, default=carried("squad"), metavar="FOLDER", help="SQuAD's files")
    add("--tokenizer", default=carried("albert-tokenizer"), metavar="FOLDER", help="of step")
    return parser.parse_args(arguments)


def carried(name: str) -> Path:
    """Return a folder of `make gpu-wheels`, or that beside the repository."""
    folder = CARRIED / name
    return folder if folder.is_dir() else ROOT.parent / "shared" / name


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if all stages ended well, 1 if not all did, 2 if the machine lacks something."""
    try:
        return run_day(parse_arguments(arguments))
    except UserError as error:
        return fail("gpu", error)


if __name__ == "__main__":
    sys.exit(main())
