"""How many faults the tests see: `python -m tests.mutants` plants one after another in the engine.

    python -m tests.mutants                                  # the engine, 8 of each module
    python -m tests.mutants --module optim --count 1000      # all of one module
    python -m tests.mutants --group pretraining --seed 1

Prints every fault that no test sees, and ends with status 1 where the tests see less than 95 %. The
work tree stays as it is: each mutant lives in a copy. One process imports the large packages and
forks a child for each, since a fault takes a second to be seen and an import of torch ten.
"""

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.mutation import PLACES, Mutant, find_mutants

ROOT = Path(__file__).resolve().parents[1]
WANTED = 0.95  # of the mutants
MEMORY = 12 << 30  # bytes of a child's address space, for a fault may be a loop that collects
SECONDS = 900  # of a child, on the processor or the clock; less for a mutant
GROUPS = {
    "engine": sorted(
        [*(ROOT / "detalbert" / "engine").glob("[!_]*.py"), ROOT / "model_def.py"],
    ),
    "pretraining": [ROOT / "pretrain" / f"{n}.py" for n in ("masking", "spans", "objectives")],
}
# What else sees a module's faults, beside the test file of its name; quick ones first.
MORE_TESTS = {
    "batches": ["tests/engine/test_loaders.py"],
    "determinism": [
        "tests/test_model_def.py::test_dropout_depends_on_seed_step_and_rank",
    ],
    "evaluation": ["tests/engine/test_attention.py::test_nothing_is_read_back_from_the_device"],
    "forward": ["tests/engine/test_forward_made_up.py"],
    "model_def": ["tests/engine/test_trial.py"],
    "models": [
        "tests/test_model_def.py::test_weights_come_from_the_folder",
        "tests/test_model_def.py::test_a_model_folder_without",
        "tests/test_model_def.py::test_a_model_too_short_or_of_another_kind",
    ],
    "precision": ["tests/engine/test_forward.py::test_half_precision_stays_near_fp32"],
    "threads": ["tests/engine/test_handover.py"],
    "trial": ["tests/test_model_def.py"],
}
# Left out: each takes longer than all the others of its module, which have to do.
SLOW = """
tests/engine/test_determinism.py::test_the_first_vector_math_is_no_race
tests/engine/test_determinism.py::test_what_trains_begins_with_a_small_one[embedded.pretrain]
tests/engine/test_determinism.py::test_prediction_begins_with_a_small_one
tests/engine/test_forward.py::test_half_precision_learns_as_fp32_does
tests/engine/test_forward.py::test_compiled_layers_give_the_same_numbers
tests/engine/test_forward.py::test_rows_of_any_length_compile_a_handful_of_times
tests/engine/test_gradients.py::test_every_rank_gets_the_same_sum[2]
tests/engine/test_meter.py::test_a_run_on_a_cpu_reports_neither
tests/engine/test_meter.py::test_training_reports_of_every_workload_have_both_on_a_gpu
tests/engine/test_profiling.py::test_a_profile_is_written_and_changes_no_bit
tests/engine/test_profiling.py::test_a_run_stopped_in_its_profile_goes_on_without
""".split()
# Statements that only a GPU runs: how each begins, and why no test of a CPU can see it.
NEEDS_A_GPU = {
    "precision": {
        "if hasattr(torch.ops.aten.mm, 'dtype'):": "a product with out_dtype",
        "return (dy.t() @ x).float()": "the same product before torch 2.8",
    },
    "profiling": {
        "if self.device.type == 'cuda':": "CUDA's activities, after a wait for the device",
    },
}
# Imported once, here: what takes long and holds nothing of ours.
LARGE = """
determined.pytorch hypothesis hypothesis.strategies numpy pytest tensorboard torch torch._dynamo
torch._inductor.compile_fx torch.distributed torch.multiprocessing torch.profiler torch.utils.data
torch.utils.flop_counter torch_optimizer tqdm transformers yaml
transformers.models.albert.modeling_albert transformers.models.bert.modeling_bert
""".split()


def tests_of(module: Path) -> list[str]:
    """What pytest runs for a module."""
    own = [
        path.relative_to(ROOT).as_posix()
        for folder in ("engine", "pretrain", ".")
        if (path := (ROOT / "tests" / folder / f"test_{module.stem}.py").resolve()).is_file()
    ]
    return [*own, *MORE_TESTS.get(module.stem, [])]


@dataclass
class Attempt:
    """One run of a module's tests, on a mutant or, first, on the module as it is."""

    module: Path
    mutant: Mutant | None
    limit: float = SECONDS  # past it the child is ended
    status: int = 0  # pytest's; -1 past the limit
    seconds: float = 0.0
    said: str = ""

    @property
    def killed(self) -> bool:
        return self.status != 0

    def __str__(self) -> str:
        place = self.module.relative_to(ROOT)
        if self.mutant is None:
            return f"{place}: its tests"
        return f"{place}:{self.mutant.line}: {self.mutant.before}  ->  {self.mutant.after}"


@dataclass
class Copy:
    """A copy of the tree, and the child that runs in it."""

    tree: Path
    pid: int = 0
    attempt: Attempt | None = None
    began: float = field(default_factory=time.monotonic)

    def start(self, attempt: Attempt) -> None:
        self.attempt, self.began = attempt, time.monotonic()
        if attempt.mutant is not None:
            (self.tree / attempt.module.relative_to(ROOT)).write_text(attempt.mutant.source)
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            os._exit(_test(self.tree, tests_of(attempt.module)))

    def poll(self) -> Attempt | None:
        """The attempt, once it is over."""
        attempt = self.attempt
        assert attempt is not None
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        attempt.seconds = time.monotonic() - self.began
        if not pid and attempt.seconds < attempt.limit:
            return None
        self.end()
        attempt.status = os.waitstatus_to_exitcode(status) if pid else -1
        attempt.said = (self.tree / "said").read_text(errors="replace")
        shutil.copy(attempt.module, self.tree / attempt.module.relative_to(ROOT))
        return attempt

    def end(self) -> None:
        """End the child, and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.attempt = None


def _test(tree: Path, tests: list[str]) -> int:
    """In a child: run the tests of the copy at `tree`. Returns pytest's status."""
    import hypothesis
    import pytest
    import torch

    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    said = os.open(tree / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(tree)
    ours = {path.stem for path in tree.iterdir()}
    for name in [name for name in sys.modules if name.split(".")[0] in ours]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(p for p in sys.path if p and Path(p).resolve() != ROOT)]
    torch.set_num_threads(1)
    hypothesis.settings.register_profile("quick", phases=list(hypothesis.Phase)[:3])
    hypothesis.settings.load_profile("quick")  # nobody reads the smallest example
    options = [f"--deselect={name}" for name in SLOW]
    options += ["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "--hypothesis-seed=0"]
    try:
        return int(pytest.main([*options, f"--basetemp={tree}/tmp", f"--rootdir={tree}", *tests]))
    except BaseException as error:
        print(repr(error))
        return 1
    finally:
        sys.stdout.flush()


def run(attempts: Iterable[Attempt], trees: list[Copy]) -> Iterator[Attempt]:
    """Run the attempts, as many at a time as there are trees; each as it ends."""
    waiting = list(attempts)
    try:
        while waiting or any(copy.attempt for copy in trees):
            for copy in trees:
                if copy.attempt is None and waiting:
                    copy.start(waiting.pop(0))
                if copy.attempt is not None and (done := copy.poll()):
                    yield done
            time.sleep(0.02)
    finally:
        for copy in trees:
            if copy.attempt is not None:
                copy.end()


@contextlib.contextmanager
def make_copies(count: int) -> Iterator[list[Copy]]:
    """The tree, `count` times, without what a test does not read."""
    for name in LARGE:
        with contextlib.suppress(ImportError):
            __import__(name)
    left_out = shutil.ignore_patterns(".*", "__pycache__", "docs", "said", "runs")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        trees = [Copy(Path(folder, str(number), "tree")) for number in range(count)]
        for copy in trees:
            shutil.copytree(ROOT, copy.tree, ignore=left_out)
            if (ROOT.parent / "shared").is_dir():
                (copy.tree.parent / "shared").symlink_to(ROOT.parent / "shared")
        yield trees


def draw(module: Path, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of a module (all, where it has fewer), in the order of its lines."""
    found = find_mutants(module.read_text(), NEEDS_A_GPU.get(module.stem, {}))
    chosen = random.Random(f"{seed} {module.stem}").sample(range(len(found)), len(found))[:count]
    return [found[number] for number in sorted(chosen)]


def judge(modules: list[Path], count: int, seed: int, trees: list[Copy], verbose: bool) -> float:
    """Print what survives, and the share that is killed, by module. Returns the whole share."""
    plain = list(run([Attempt(module, None) for module in modules], trees))
    failed = [attempt for attempt in plain if attempt.status]
    if failed:
        sys.exit(
            "\n".join(f"{attempt} do not pass as they are:\n{attempt.said}" for attempt in failed)
        )
    limits = {attempt.module: 15 + 3 * attempt.seconds for attempt in plain}
    print(f"the tests pass as they are: {sum(t.seconds for t in plain):.0f} s", flush=True)
    attempts = [Attempt(m, mutant, limits[m]) for m in modules for mutant in draw(m, count, seed)]
    for attempt in run(attempts, trees):
        if not attempt.killed:
            print(f"survives  {attempt}", flush=True)
        elif attempt.status < 0:
            print(f"hangs     {attempt}", flush=True)
        elif verbose:
            failures = [
                line for line in attempt.said.splitlines() if line.startswith(("FAILED", "ERROR"))
            ]
            print(f"killed    {attempt}  {attempt.seconds:.0f} s  {failures[:1]}", flush=True)
    for module in modules:
        of_module = [attempt for attempt in attempts if attempt.module == module]
        killed = sum(attempt.killed for attempt in of_module)
        print(f"{module.relative_to(ROOT)}: {killed} of {len(of_module)}")
    killed = sum(attempt.killed for attempt in attempts)
    print(f"{killed} of {len(attempts)} mutants are killed: {killed / len(attempts):.1%}")
    return killed / len(attempts)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--group", choices=GROUPS, default="engine")
    parser.add_argument("--module", action="append", help="one of the group's, without .py")
    parser.add_argument("--count", type=int, default=8, help="mutants of each module (8)")
    parser.add_argument("--seed", type=int, default=0, help="which of them are drawn (0)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--verbose", action="store_true", help="also what kills each of the others")
    args = parser.parse_args()
    known = {path.stem: path for path in GROUPS[args.group]}
    for name in args.module or []:
        if name not in known:
            parser.error(f"--module {name}: not one of {', '.join(known)}")
    modules = [path for stem, path in known.items() if not args.module or stem in args.module]
    for module in modules:
        for text, why in NEEDS_A_GPU.get(module.stem, {}).items():
            print(f"left out, it needs a GPU: {module.stem}: {text} ({why})")
    print(f"left out, a CPU takes any value: the keywords {', '.join(sorted(PLACES))}", flush=True)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no child outlives it
    with make_copies(args.jobs) as trees:
        share = judge(modules, args.count, args.seed, trees, args.verbose)
    print(f"{time.monotonic() - began:.0f} s")
    return int(share < WANTED)


if __name__ == "__main__":
    # Before torch and the library are imported: one thread a child, no network, no stale bytecode.
    os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    sys.exit(main())
