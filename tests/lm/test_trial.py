"""A language model through the real entry point: restarts, layouts, checkpoints beside training."""

import math
import shutil
from datetime import datetime

import numpy as np
import pytest
import yaml
from torch.distributed import checkpoint as dcp

from detalbert.training.controller import ShardedController
from detalbert.training.folder import list_checkpoints
from detalbert.training.parts import TensorSaver
from lm.trial import RankTotals, TargetReducer
from tests.conftest import TINY_LM, configured, settings
from tests.fakes.damage import rewrite
from tests.fakes.runs import metrics, newest, refusal, run, steps_of, train_into, wait_for
from tests.same_bits import differences, of_checkpoint
from tests.training.test_whole_run import scalars_of

VOCABULARY = 320
PART = "shard-00002-model-00001-of-00001.safetensors"  # rank 1's
KEEP_ALL = {"save_trial_latest": 9}


def test_a_run_learns_and_says_how_well(plain, tmp_path):
    longer = settings(max_steps=60, validation_period=30, checkpoint_period=60)
    assert run(plain / "config.yaml", tmp_path / "out", *longer) == 0

    best = metrics(tmp_path / "out")["best"]
    throughput = metrics(tmp_path / "out")["throughput"]
    (times,) = throughput["starts"]
    run_time = datetime.fromisoformat(times["end"]) - datetime.fromisoformat(times["start"])
    assert 0 < sum(throughput["checkpoint_seconds"]) < run_time.total_seconds()
    assert best["loss"] < 0.7 * math.log(VOCABULARY)  # of equal chances, as at the start
    assert best["perplexity"] < 0.2 * VOCABULARY
    assert best["bits_per_byte"] < best["baseline_bits_per_byte"]
    assert best["accuracy"] > 10
    trained = scalars_of(tmp_path / "out")["training/accuracy"][-1]
    assert trained == pytest.approx(best["accuracy"], rel=0.5)


def test_scores_are_of_all_ranks_and_by_source():
    sums = np.array([[6.0, 2.0, 2.0], [2.0, 0.0, 2.0], [0.0, 0.0, 0.0]])  # by source
    no_counts = np.zeros(VOCABULARY)
    totals = [
        RankTotals(sums, no_counts, np.array([2.0, 3.0, 0.0])),  # bytes by source
        RankTotals(sums, no_counts, np.array([1.0, 5.0, 0.0])),
    ]
    token_bytes = np.ones((3, VOCABULARY))

    scores = TargetReducer(["a", "b", "none"], token_bytes, counts=False).cross_slot_reduce(totals)

    assert scores["loss"] == 2
    assert scores["loss_a"] == 3
    assert scores["loss_b"] == 1
    assert "loss_none" not in scores
    assert scores["bits_per_byte"] == pytest.approx(8 / math.log(2) / 11)
    assert scores["bits_per_byte_b"] == pytest.approx(2 / math.log(2) / 8)


@pytest.fixture(scope="module")
def plain(once, cache_dir):
    """A folder with a run of one process, in out/, and its config."""
    config = configured(TINY_LM, cache_dir, validation_period=100)
    config["checkpoint_storage"] = KEEP_ALL
    return once("plain", lambda folder: train_into(folder, config))


@pytest.fixture(scope="module")
def two(once, cache_dir, train):
    """A folder with a run of two processes, in out/, and its config."""
    config = configured(TINY_LM, cache_dir, layout={"shard": 2})
    # Dropout's masks belong to a data rank: without any, other layouts compute the same.
    config["hyperparameters"]["model_config"]["attention_dropout"] = 0.0
    config["checkpoint_storage"] = KEEP_ALL

    def fill(folder):
        config_path = folder / "lm.yaml"
        config_path.write_text(yaml.safe_dump(config))
        ended = train("--config", config_path, "--output-dir", folder / "out", processes=2)
        assert ended.returncode == 0, ended.stderr

    return once("two", fill)


def back_to(output, steps, copy):
    """A copy of a run's output without the checkpoints after `steps`."""
    shutil.copytree(output, copy)
    for checkpoint_steps, folder in list_checkpoints(copy / "checkpoints"):
        if checkpoint_steps > steps:
            shutil.rmtree(folder)
    return copy


def test_each_process_writes_its_part_and_one_reads_both(two, tmp_path):
    """Two processes -> one: the same losses."""
    output = two / "out"
    sizes = [path.stat().st_size for path in newest(output).glob("shard-*.safetensors")]
    assert len(sizes) == 2
    assert max(sizes) < 1.3 * min(sizes)

    alone = back_to(output, 4, tmp_path / "one")
    assert run(two / "lm.yaml", alone, *settings(layout="auto", checkpoint_period=100)) == 0
    expected = metrics(output)["last"]["loss"]
    assert metrics(alone)["last"]["loss"] == pytest.approx(expected, abs=1e-5)


def test_two_processes_pass_over_a_damaged_part_and_go_on_as_the_same_run(two, tmp_path, train):
    resumed = back_to(two / "out", 8, tmp_path / "resumed")
    part = newest(resumed) / PART
    part.write_bytes(part.read_bytes()[:-7])

    ended = train("--config", two / "lm.yaml", "--output-dir", resumed, processes=2)

    assert ended.returncode == 0, ended.stderr
    assert "resumed at step 6 of 12" in ended.stderr, ended.stderr
    assert f"{PART} is not as it was written" in ended.stderr
    assert differences(two / "out", resumed) == []


def test_a_part_that_is_lost_is_refused_though_the_manifest_lacks_it(two, tmp_path, capsys):
    copy = back_to(two / "out", 4, tmp_path / "copy")
    (newest(copy) / PART).unlink()
    rewrite(newest(copy))
    error = refusal(capsys, two / "lm.yaml", copy, *settings(layout="auto"))
    assert "does not fit: " in error
    assert "is not whole" in error


def test_what_is_stored_is_the_state_at_the_call(plain, tmp_path, monkeypatch):
    """Training goes on for three steps before it is written, unless it has ended."""
    trained_steps = 0
    train_batch = ShardedController._train_batch
    save = TensorSaver.save

    def train_and_count(*args, **kwargs):
        nonlocal trained_steps
        result = train_batch(*args, **kwargs)
        trained_steps += 1
        return result

    def save_slowly(*args, **kwargs):
        write = save(*args, **kwargs)
        write_at = min(trained_steps + 3, 12)

        def write_later():
            wait_for(lambda: trained_steps >= write_at)
            write()

        return write_later

    monkeypatch.setattr(ShardedController, "_train_batch", train_and_count)
    monkeypatch.setattr(TensorSaver, "save", save_slowly)
    assert run(plain / "config.yaml", tmp_path / "out") == 0

    assert steps_of(plain / "out") == steps_of(tmp_path / "out") == [4, 8, 12]
    checkpoints = [folder for _, folder in list_checkpoints(plain / "out" / "checkpoints")]
    contents = [of_checkpoint(folder) for folder in checkpoints]
    written_late = list_checkpoints(tmp_path / "out" / "checkpoints")
    assert [of_checkpoint(folder) for _, folder in written_late] == contents
    assert contents[0] != contents[1]


def test_a_failed_write_ends_the_run_at_the_next_step(plain, tmp_path, capsys, monkeypatch):
    endless = settings(max_steps=4000, validation_period=4000, reporting_period=4000)
    write_data = dcp.HuggingFaceStorageWriter.write_data
    calls = 0

    def fail_at_the_second(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        return write_data(*args, **kwargs)

    monkeypatch.setattr(dcp.HuggingFaceStorageWriter, "write_data", fail_at_the_second)
    error = refusal(capsys, plain / "config.yaml", tmp_path / "out", *endless)

    assert "cannot write checkpoint step-00000008 (No space left on device)" in error
    assert steps_of(tmp_path / "out") == [4]
    assert not list((tmp_path / "out" / "checkpoints").glob(".*"))
