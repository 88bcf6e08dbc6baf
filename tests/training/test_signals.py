"""SIGTERM and SIGINT to all processes of a run, as a scheduler or a terminal sends them."""

import multiprocessing
import os
import re
import signal
import sys

import pytest
from determined import core

from detalbert.training.manifest import find_fault
from detalbert.training.schedule import LocalStops, restored_signals
from tests.conftest import launcher
from tests.fakes.runs import change, newest, steps_of
from tests.leftovers import Started
from tests.same_bits import differences
from tests.training.conftest import ADVICE

TERM, INT = signal.SIGTERM, signal.SIGINT


def cut(command, output, place, number):
    """Start a run, send a signal to all its processes when it is at `place`; how it says that it
    ended."""
    go_on = output.with_name("go on")
    go_on.unlink(missing_ok=True)
    run = Started(command, output.with_name("log"), GO_ON=str(go_on))
    run.wait_for("STANDS STILL")
    run.signal(number)
    go_on.touch()
    assert run.left() == []
    log = run.said
    ends = re.findall("^INFO: (stopped .*); run the same command .*", log, re.MULTILINE)
    assert len(ends) == 1, log
    assert "ERROR: " not in log, log
    # torchrun ends with 1, and a traceback of its own.
    tracebacks_of_torchrun = log.count("SignalException: ")
    if "torch.distributed.run" in command:
        assert tracebacks_of_torchrun <= 1, log
    else:
        assert tracebacks_of_torchrun == 0, log
        assert run.main.returncode == 128 + number, log
    # Torch's rendezvous thread may run its own finalizer, and then cannot join itself.
    ignored = log.count("Exception ignored in: <finalize object")
    assert log.count("Traceback") - ignored == tracebacks_of_torchrun, log
    assert not list(output.glob("checkpoints/.*"))

    stopping = f"INFO: {number.name}: stopping after this step or validation, with a checkpoint\n"
    if place == "start":
        assert stopping not in log
    else:
        assert stopping in log
        assert find_fault(newest(output)) is None
        assert ends[0] == f"stopped after step {steps_of(output)[-1]}"
    return ends[0]


# Where each signal comes, and how the run says that it ended, by the number of processes.
CUTS = {
    1: [
        ("start", INT, "stopped by SIGINT before the first step"),
        ("validation", TERM, "stopped after step 8"),
    ],
    2: [("checkpoint", TERM, "stopped after step 4")],
}


@pytest.mark.parametrize("processes", CUTS)
def test_a_signal_to_all_processes_ends_in_a_checkpoint(
    processes, service, tiny_config, train, python, tmp_path
):
    """Afterwards EC2 recommends to leave one machine: all ranks save once more, and go on."""
    change(
        tiny_config,
        num_workers=2,
        max_steps=14,
        validation_period=8,
        checkpoint_period=4,
        max_tokens_per_forward=256,
        spot_notice=True,
    )
    out = tmp_path / "out"
    uncut = tmp_path / "uncut"
    arguments = ["--config", tiny_config, "--output-dir"]
    for place, number, expected_end in CUTS[processes]:
        command = [*launcher(processes, python), "-m", "tests.broken", place, *arguments, out]
        assert cut(command, out, place, number) == expected_end

    service.rebalance = ADVICE
    keep_all = ["--set", "checkpoint_storage.save_trial_latest=9"]
    for output in (out, uncut):
        ended = train(*keep_all, *arguments, output, processes=processes)
        assert ended.returncode == 0, ended.stderr
        log_of_last = ended.stderr

    assert differences(out, uncut) == []
    (early,) = set(steps_of(uncut)) - {4, 8, 12, 14}
    assert early in (3, 6, 9, 10)  # a report
    assert log_of_last.count("EC2 recommends") == 1
    assert "EC2 announces" not in log_of_last


@pytest.mark.parametrize("part", ["early", "alone"])
def test_a_signal_to_one_rank_is_said_by_that_rank(part, tiny_config, python, tmp_path):
    command = [*launcher(2, python), "-m", "tests.broken", part, "--config", tiny_config]
    run = Started([*command, "--output-dir", tmp_path / "out"], tmp_path / "log")
    assert run.left() == []
    assert run.main.returncode != 0, run.said
    assert "ERROR: " not in run.said, run.said
    if part == "early":
        assert "INFO: rank 1: stopped by SIGTERM before the first step" in run.said
    else:
        assert "INFO: rank 1: SIGTERM: stopping after this step or validation" in run.said
        assert "INFO: asked to stop by another rank; a checkpoint follows\n" in run.said
        assert "INFO: stopped after step 1; " in run.said
        assert find_fault(newest(tmp_path / "out")) is None


@pytest.mark.parametrize(
    ("signals", "below_torchrun", "status"),
    [
        ([TERM, TERM, INT, TERM], False, 0),
        ([INT, TERM, TERM], False, 0),
        ([INT, INT], False, -INT),
        ([TERM, INT, INT], False, -INT),
        ([INT, INT, TERM, INT], True, 0),
    ],
)
def test_what_a_repeated_signal_does(
    signals,
    below_torchrun,
    status,
    monkeypatch,
    fork,
):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if below_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")

    def take():
        stop = LocalStops(core.DummyDistributedContext())
        stop.take_signals()
        for number in signals:
            os.kill(os.getpid(), number)
        sys.exit(stop.reason != signals[0].name)

    process = multiprocessing.get_context("fork").Process(target=take)
    process.start()
    process.join(300)
    assert process.exitcode == status


def test_handlers_of_before_are_there_again_after_a_run():
    before = signal.getsignal(TERM)
    with restored_signals():
        LocalStops(core.DummyDistributedContext()).take_signals()
        assert signal.getsignal(TERM) != before
    assert signal.getsignal(TERM) == before
