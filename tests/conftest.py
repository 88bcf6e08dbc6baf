"""Fixtures and helpers that several test files use.

They import torch and transformers when they run: the process that hands tests to pytest-xdist's
workers reads this file, too, and the workers wait for it.
"""

import copy
import gc
import json
import logging
import lzma
import os
import pathlib
import shutil
import signal
import subprocess
import sys

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported: no test goes out
# `threads: auto` is 1 in this process and all that it starts: the number makes bits.
os.environ["LOKY_MAX_CPU_COUNT"] = "1"
os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as train.py has it; read by torch

gc.disable()  # until all is imported: a fifth of the time that takes
import filelock
import hypothesis
import pytest
import yaml

from tests.zygote import start_zygote

SOAK = 10 if "SOAK" in os.environ else 1


def in_soak(*values):
    """Parameters of a test that are left to `make soak`."""
    return pytest.param(*values, marks=pytest.mark.soak)


def max_examples(count):
    """Settings of a property test: the same `count` examples; in the soak ten times, drawn anew."""
    slow = [hypothesis.HealthCheck.too_slow]
    more = {"derandomize": SOAK == 1, "deadline": None, "database": None}
    if "FAULTS" in os.environ:  # tests/faults.py asks whether a test fails, not for a small example
        more["phases"] = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    return hypothesis.settings(max_examples=SOAK * count, suppress_health_check=slow, **more)


hypothesis.settings.register_profile("tests", max_examples(100))
hypothesis.settings.load_profile("tests")
os.fsync = lambda file: None  # no test takes a machine's power; a small run waited for little else

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Fixtures whose tests start a process or a server, or train a model: `make quick` leaves them out.
STARTS = {"python", "real_python", "cache_dir", "sandbox", "fork", "browser"}
STARTS |= {"s3", "service", "master", "aws"}


def pytest_configure():
    """Tests are of the CPU on a machine with GPUs, too, unless the command says which to see."""
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    os.environ.setdefault("ZYGOTE_OWNER", str(os.getpid()))  # inherited by pytest-xdist's workers
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in a shell's background
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.addaudithook(_no_start)


def pytest_collection_modifyitems(items):
    """Mark as quick every test that uses no fixture of STARTS and is not of the soak."""
    import torch

    torch.set_num_threads(1)
    for item in items:
        if not item.get_closest_marker("soak") and STARTS.isdisjoint(item.fixturenames):
            item.add_marker("quick")
    gc.freeze()  # a collection skips the million objects of libraries
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    _running[:] = [item] if item.get_closest_marker("quick") else []
    try:
        return (yield)
    finally:
        _running.clear()


_running = []


def _no_start(event, _):
    """An audit hook: a quick test that starts a process fails."""
    if _running and event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"):
        raise RuntimeError(f"{event} in a quick test: use a fixture of conftest.STARTS")


def _config(name):
    return yaml.safe_load((ROOT / "tests" / "configs" / f"{name}.yaml").read_text())


TINY, TINY_PRETRAINING, TINY_LM = map(_config, ("finetuning", "pretraining", "language_model"))
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def configured(config, cache_dir, **hparams):
    """A copy of an experiment config with this feature cache and other hyperparameters."""
    config = copy.deepcopy(config)
    config["data"]["cache_dir"] = str(cache_dir)
    config["hyperparameters"].update(hparams)
    return config


@pytest.fixture(scope="session")
def golden_dir(once):
    """The files of tests/golden, unpacked: real SQuAD, the real tokenizer, what others answered."""
    packed = ROOT / "tests" / "golden"

    def unpack(folder):
        for path in packed.glob("**/*.*"):
            target = folder / path.relative_to(packed)
            target.parent.mkdir(exist_ok=True)
            if path.suffix == ".xz":
                target.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
            else:
                shutil.copy(path, target)

    return once("golden", unpack)


@pytest.fixture(scope="session")
def albert(golden_dir):
    """The real tokenizer."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(golden_dir / "albert-tokenizer"))


@pytest.fixture(scope="session")
def dev(golden_dir, albert):
    """The questions of the real dev file, as `Example`, and their `Windows`."""
    from detalbert.squad.windows import build_windows
    from tests.fakes.questions import read_squad

    examples = read_squad(golden_dir / "dev.json")
    return examples, build_windows(examples, albert)


@pytest.fixture(scope="session")
def session_dir(tmp_path_factory):
    """A folder that all of pytest-xdist's workers share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def cache_dir(session_dir):
    """One feature cache for all runs of a session."""
    return session_dir / "cache"


@pytest.fixture(scope="session")
def once(session_dir):
    """`once(name, fill)`: a folder that `fill` filled, for the first worker that asked; to read."""

    def folder(name, fill):
        path = session_dir / name
        with filelock.FileLock(f"{path}.lock"):
            if not (path / "filled").exists():
                path.mkdir()
                fill(path)
                (path / "filled").touch()
        return path

    return folder


@pytest.fixture(scope="session")
def real_python():
    """The interpreter, for what a fork of the zygote cannot show."""
    return sys.executable


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """A program that behaves as the interpreter, without its imports: see tests/zygote.py."""
    return start_zygote(tmp_path_factory.mktemp("bin"))


@pytest.fixture
def script(python, tmp_path):
    """`script(source)`: the command that runs this source in a fork, with the package to import."""

    def command(source):
        path = tmp_path / "script.py"
        path.write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{source}")
        return [python, str(path)]

    return command


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium with a window of 1280 x 1000."""
    from tests.fakes.browser import chromium

    with chromium(tmp_path_factory.mktemp("chromium"), "1280,1000") as driver:
        yield driver


@pytest.fixture(scope="session")
def fork():
    """For tests that fork this process, by multiprocessing or a loader's workers."""


@pytest.fixture
def tiny_config(tmp_path, cache_dir):
    """TINY as a YAML file."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(configured(TINY, cache_dir)))
    return path


def launcher(processes, python=sys.executable):
    """The words before the trainer's: Python, with torchrun for several processes."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    return [python, *(torchrun if processes > 1 else [])]


@pytest.fixture(scope="session")
def train(python):
    """`train(*arguments, processes=1, **env)`: run train.py in forks of the zygote."""

    def run(*arguments, processes=1, **env):
        command = [*launcher(processes, python), str(ROOT / "train.py"), *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, timeout=1800, env=os.environ | env
        )

    return run


def settings(**values):
    """Return --set arguments: max_steps=5 gives ["--set", "hyperparameters.max_steps=5"]."""
    pairs = (f"hyperparameters.{key}={json.dumps(value)}" for key, value in values.items())
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.fixture(autouse=True)
def quiet():
    """A run in this process has it say its lines; the tests after it do without."""
    yield
    for handler in [*logging.root.handlers]:
        if type(handler).__module__ == "detalbert.log":
            logging.root.removeHandler(handler)


# They use what is above.
from tests.fakes.trained import finished, lm_run, local_run, model  # noqa: F401
