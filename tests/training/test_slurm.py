"""cluster/slurm.sbatch, run as Slurm runs it (tests/fakes/slurm.py)."""

import os
import signal
import socket
from pathlib import Path

import pytest

from detalbert.settings.experiment import single_values, trial_seed
from detalbert.settings.yaml_files import read_yaml
from tests.conftest import Train
from tests.fakes.runs import change
from tests.fakes.slurm import NO_STEP, Slurm
from tests.leftovers import Started
from tests.same_bits import differences

TERM, KILL = signal.SIGTERM, signal.SIGKILL


def kill_a_rank(job: Started) -> None:
    ranks = [p for p in job.processes() if "run" in p.cmdline() and "train.py" in p.cmdline()]
    ranks[-1].kill()  # the stand-in of the zygote's fork, which it takes along


def end_after_the_grace(job: Started) -> None:
    job.signal(TERM)
    job.signal(KILL)


# What happens to the job: its exit status, and whether the script asks for another start.
DISTURBANCES = {
    "the time limit is near": (lambda job: job.signal(TERM, *NO_STEP), 0, True),
    "preempted": (lambda job: job.signal(TERM), -TERM, False),
    "a rank is killed": (kill_a_rank, 0, True),
    "the grace is over": (end_after_the_grace, (-TERM, -KILL), False),
}


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_disturbed_job_ends_in_the_uncut_bits(
    nodes: int, tiny_config: Path, train: Train, python: str, tmp_path: Path
) -> None:
    periods = {"checkpoint_period": 30, "validation_period": 60, "reporting_period": 1}
    change(tiny_config, max_steps=240, num_workers=1, **periods)
    slurm = Slurm(tmp_path, python, nodes, tiny_config)
    for what, (disturb, status, again) in DISTURBANCES.items():
        job = slurm.start()
        job.wait_for("INFO: step ")
        disturb(job)
        ended = slurm.end(job)
        assert ended[0] in (status if isinstance(status, tuple) else (status,)), (what, job.said)
        assert ended[1] == again, (what, job.said)
        assert "Traceback" not in job.said, job.said
        if (what, nodes) == ("a rank is killed", 1):  # else its peer may have ended first
            assert "slurm.sbatch: status 137, again: yes\n" in job.said
    job = slurm.start()
    assert slurm.end(job) == (0, False), job.said
    restart = f"Slurm {os.getpid()}, restart 4, torchrun, where a stop may take 110 s"
    assert restart in job.said and "INFO: resumed at step " in job.said
    done = train("--config", tiny_config, "--output-dir", tmp_path / "uncut", processes=nodes)
    assert done.returncode == 0, done.stderr
    run = slurm.folder / "runs" / f"slurm-{os.getpid()}"
    assert differences(run, tmp_path / "uncut") == []


def test_a_mistake_is_not_tried_again(python: str, tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, python, 1, "configs/none.yaml")
    job = slurm.start()
    assert slurm.end(job) == (2, False) and "configs/none.yaml" in job.said


def test_a_job_array_draws_a_search(tiny_config: Path, python: str, tmp_path: Path) -> None:
    change(tiny_config, max_steps=2, lr_scale={"type": "double", "minval": 0.5, "maxval": 1.0})
    slurm = Slurm(tmp_path, python, 1, tiny_config)
    job = slurm.start(SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3")
    assert slurm.end(job) == (0, False), job.said
    config = read_yaml(tiny_config)
    wanted = single_values(config["hyperparameters"], trial_seed(config), 3)["lr_scale"]
    run = read_yaml(slurm.folder / "runs" / "slurm-7_3" / "config.yaml")
    assert run["hyperparameters"]["lr_scale"] == wanted


def test_an_environment_that_sbatch_does_not_hand_on(python: str, tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, python, 1, "configs/none.yaml")
    job = slurm.start(SLURM_EXPORT_ENV="NONE")
    assert slurm.end(job) == (2, False)
    assert "train.py: error: configs/none.yaml" in job.said and "execve" not in job.said


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_port_that_is_taken(nodes: int, tiny_config: Path, python: str, tmp_path: Path) -> None:
    """One machine takes another; several are queued again, with one line that says why."""
    change(tiny_config, max_steps=2)
    slurm = Slurm(tmp_path, python, nodes, tiny_config)
    port = 20000 + os.getpid() % 10000
    with socket.create_server(("", port)):
        job = slurm.start()
        status = slurm.end(job)
    if nodes == 1:
        assert status == (0, False), job.said
        return
    assert status == (0, True), job.said
    problem = f"torchrun: unavailable: --master_port {port}: another program"
    assert job.said.count(problem) == 1


AGAIN = {(0, 0): 0, (1, 0): 0, (2, 0): 0, (4, 0): 1, (5, 19): 1, (137, 20): 0, (130, 20): 1}
AGAIN |= {(143, 20): 1, (126, 0): 0, (127, 0): 0}


@pytest.mark.parametrize("status, restarts", AGAIN)
def test_what_is_started_again(status: int, restarts: int, python: str, tmp_path: Path) -> None:
    """A stopped run always, a fault 20 times, a mistake never; `srun` here only ends so."""
    slurm = Slurm(tmp_path, python, 1, "configs/local.yaml")
    (tmp_path / "programs" / "srun").write_text(f"#!/bin/bash\nexit {status}\n")
    again = AGAIN[status, restarts]
    job = slurm.start(SLURM_RESTART_COUNT=str(restarts))
    assert slurm.end(job) == (0 if again else status, bool(again)), job.said
