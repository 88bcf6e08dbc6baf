"""cluster/slurm.sbatch, run as Slurm runs it (tests/fakes/slurm.py)."""

import os
import signal
import socket
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.conftest import SOAK, in_soak
from tests.fakes.runs import change
from tests.fakes.slurm import NO_STEP, Slurm
from tests.leftovers import Started
from tests.same_bits import differences

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def kill_a_rank(job):
    ranks = []
    for process in job.processes():
        words = process.cmdline()
        if "run" in words and "train.py" in words:
            ranks.append(process)
    ranks[-1].kill()  # the stand-in of the zygote's fork, which it takes along


def announce_the_time_limit(job):
    job.signal(TERM, *NO_STEP)


def preempt(job):
    job.signal(TERM)


def end_after_the_grace(job):
    job.signal(TERM)
    job.signal(KILL)


class Disturbance(NamedTuple):
    """What happens to a job, how it may end, and whether it asks for another start."""

    disturb: Callable[[Started], None]
    statuses: list[int]
    again: bool


DISTURBANCES = [
    Disturbance(preempt, [-TERM], again=False),
    Disturbance(kill_a_rank, [0], again=True),
]
if SOAK > 1:
    DISTURBANCES += [
        Disturbance(announce_the_time_limit, [0], again=True),
        Disturbance(end_after_the_grace, [-TERM, -KILL], again=False),
    ]


@pytest.mark.parametrize("nodes", [in_soak(1), 2])
def test_a_disturbed_job_ends_in_the_uncut_bits(nodes, tiny_config, train, python, tmp_path):
    change(
        tiny_config,
        max_steps=120,
        num_workers=1,
        checkpoint_period=20,
        validation_period=60,
        reporting_period=1,
    )
    slurm = Slurm(tmp_path, python, nodes, tiny_config)
    for disturb, statuses, expected_again in DISTURBANCES:
        job = slurm.start()
        job.wait_for("INFO: step ")
        disturb(job)
        status, again = slurm.end(job)
        assert status in statuses, (disturb, job.said)
        assert again == expected_again, (disturb, job.said)
        assert "Traceback" not in job.said, job.said
        if disturb is kill_a_rank and nodes == 1:  # else its peer may have ended first
            assert "slurm.sbatch: status 137, again: yes\n" in job.said

    job = slurm.start()
    assert slurm.end(job) == (0, False), job.said
    assert "INFO: resumed at step " in job.said

    uncut = tmp_path / "uncut"
    ended = train("--config", tiny_config, "--output-dir", uncut, processes=nodes)
    assert ended.returncode == 0, ended.stderr
    run = slurm.folder / "runs" / f"slurm-{os.getpid()}"
    assert differences(run, uncut) == []


def test_a_mistake_is_not_tried_again(python, tmp_path):
    slurm = Slurm(tmp_path, python, 1, "configs/none.yaml")
    job = slurm.start()
    assert slurm.end(job) == (2, False)
    assert "configs/none.yaml" in job.said


def test_an_environment_that_sbatch_does_not_hand_on(python, tmp_path):
    slurm = Slurm(tmp_path, python, 1, "configs/none.yaml")
    job = slurm.start(SLURM_EXPORT_ENV="NONE")
    assert slurm.end(job) == (2, False)
    assert "train.py: error: configs/none.yaml" in job.said
    assert "execve" not in job.said


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_port_that_is_taken(nodes, tiny_config, python, tmp_path):
    """One machine takes another; several are queued again, with one line that says why."""
    change(tiny_config, max_steps=2)
    slurm = Slurm(tmp_path, python, nodes, tiny_config)
    port = 20000 + os.getpid() % 10000
    with socket.create_server(("", port)):
        job = slurm.start()
        status, again = slurm.end(job)
    assert status == 0, job.said
    if nodes == 1:
        assert not again, job.said
    else:
        assert again, job.said
        problem = f"torchrun: unavailable: --master_port {port}: "
        assert job.said.count(problem) == 1


@pytest.mark.parametrize(
    ("status", "restarts", "again"),
    [
        (0, 0, False),
        (1, 0, False),
        (2, 0, False),
        (4, 0, True),
        (5, 19, True),
        (137, 20, False),
        (130, 20, True),
        (143, 20, True),
        (126, 0, False),
        (127, 0, False),
    ],
)
def test_what_is_started_again(status, restarts, again, python, tmp_path):
    """A stopped run always, a fault 20 times, a mistake never; `srun` here only ends so."""
    slurm = Slurm(tmp_path, python, 1, "configs/local.yaml")
    (tmp_path / "programs" / "srun").write_text(f"#!/bin/bash\nexit {status}\n")
    job = slurm.start(SLURM_RESTART_COUNT=str(restarts))
    assert slurm.end(job) == (0 if again else status, again), job.said
