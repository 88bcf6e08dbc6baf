"""`train.py --dry-run`: it says what a start would do, finds its mistakes, and leaves nothing."""

import re

import pytest

from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING
from tests.engine.trials import config_file
from tests.fakes.runs import change, refusal, run

pytestmark = pytest.mark.slow
WORKLOADS = {"fine-tuning": TINY, "pretraining": TINY_PRETRAINING, "language model": TINY_LM}
# Of a language model, 6 windows of 32 tokens.
BATCHES = {
    "fine-tuning": "8 windows, about 985 tokens per step, 512 at most in one forward",
    "pretraining": "8 windows, about 388 tokens per step, 512 at most in one forward",
    "language model": "6 windows, about 192 tokens per step, 64 at most in one forward",
}
NAMES = "train validation model device batch steps output".split()


def files(folder):
    """When each file was last changed, but for the stamps of checked files."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.stat().st_mtime_ns for path in paths if ".checked" not in path.name}


def lines_of(shown):
    """The named lines of the log."""
    found = re.findall(r"^INFO: (\S+) +(.*)$", shown, re.MULTILINE)
    return {name: text for name, text in found if name in NAMES}


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_says_what_a_start_would_do_and_leaves_nothing(workload, tmp_path, capsys):
    cache = tmp_path / "cache"
    config = config_file(tmp_path, WORKLOADS[workload], cache)

    assert run(config, tmp_path / "out", "--dry-run") == 0

    # Windows and shards are there for the start.
    assert {path.name for path in tmp_path.iterdir()} == {config.name, "cache"}
    lines = lines_of(capsys.readouterr().err)
    assert list(lines) == NAMES
    assert lines["output"] == str(tmp_path / "out")
    assert lines["batch"] == BATCHES[workload]


def test_it_reads_the_windows_that_are_there_and_the_run(tmp_path, capsys):
    config = config_file(tmp_path, TINY, tmp_path / "cache")
    assert run(config, tmp_path / "out") == 0
    steps = TINY["hyperparameters"]["max_steps"]
    before = files(tmp_path / "cache") | files(tmp_path / "out")
    capsys.readouterr()

    assert run(config, tmp_path / "out", "--dry-run") == 0

    shown = capsys.readouterr().err
    assert "encoding the questions" not in shown
    assert f"resumed at step {steps} of {steps} from" in shown
    after = files(tmp_path / "cache") | files(tmp_path / "out")
    assert {path: when for path, when in after.items() if before.get(path) != when} == {}


def test_mistakes_are_those_of_a_start(tmp_path, capsys):
    """A key, data, a window that is too long, another run's folder, somebody's file."""

    def check(config, output, *more):
        expected = refusal(capsys, config, output, *more)
        assert refusal(capsys, config, output, *more, "--dry-run") == expected

    cache = tmp_path / "cache"
    config = config_file(tmp_path, TINY, cache)
    check(config, tmp_path / "key", "--set", "hyperparameters.learn_rate=1")
    check(config, tmp_path / "data", "--set", f"data.train={tmp_path / 'no.json'}")
    long = ["--set", "hyperparameters.model_config.max_position_embeddings=16"]
    check(config, tmp_path / "long", *long)
    check(config, tmp_path / "decay", "--set", "hyperparameters.early_stopping=1000")

    own = tmp_path / "own"
    own.mkdir()
    (own / "config.yaml").write_text("mine: true\n")
    check(config, own)

    assert run(config, tmp_path / "out") == 0
    capsys.readouterr()
    check(change(config, base_learning_rate=0.5), tmp_path / "out")
