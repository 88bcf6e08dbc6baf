"""Runs of `train.py` in this process: started, stopped by a real signal, continued; changed."""

import json
import os
import signal
import time

import yaml

import train
from detalbert.engine import progress
from detalbert.training.folder import list_checkpoints


def change(config, **hyperparameters):
    """Change the file of a config; values of `model_config` are added to those that it has."""
    content = yaml.safe_load(config.read_text())
    shape = content["hyperparameters"]["model_config"] | hyperparameters.pop("model_config", {})
    content["hyperparameters"].update(hyperparameters, model_config=shape)
    config.write_text(yaml.safe_dump(content))
    return config


def run(config, output, *more):
    return train.main(["--config", str(config), "--output-dir", str(output), *map(str, more)])


def train_into(folder, config):
    """Train a config, which is written into the folder, into out/ there."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert run(folder / "config.yaml", folder / "out") == 0


def refusal(capsys, config, output, *more):
    """Return the one line on standard error with which a run is refused, by status 2 or 4."""
    status = run(config, output, *more)
    line = only_error(capsys.readouterr().err)
    unavailable = line.startswith("train.py: unavailable: ")
    assert status == (4 if unavailable else 2)
    return line


def only_error(shown):
    """Return the one line that is no INFO: an error of train.py."""
    lines = [line for line in shown.splitlines() if not line.startswith(("INFO: ", "WARNING: "))]
    assert len(lines) == 1, shown
    assert lines[0].startswith("train.py: ")
    return lines[0]


def metrics(output):
    """What a run wrote into its metrics.json."""
    return json.loads((output / "metrics.json").read_text())


def official(scores):
    """What a prediction has of a validation's scores: all numbers but loss and calibration."""
    others = ("language", "loss", "calibrat", "probability_")
    return {k: v for k, v in scores.items() if not any(word in k for word in others)}


def newest(output):
    """The folder of the newest checkpoint."""
    return list_checkpoints(output / "checkpoints")[-1][1]


def at_report(monkeypatch, step, do):
    """Have each report from `step` on call `do`."""
    report = progress.Progress.on_training_workload_end

    def report_and_do(self, *args, **kwargs):
        report(self, *args, **kwargs)
        if self.history.step >= step:
            do()

    monkeypatch.setattr(progress.Progress, "on_training_workload_end", report_and_do)


def stop_after(monkeypatch, step):
    """Have the process send itself a real SIGTERM at the first report from `step` on."""
    at_report(monkeypatch, step, lambda: os.kill(os.getpid(), signal.SIGTERM))


def cut_and_go_on(config, output, monkeypatch, at):
    with monkeypatch.context() as patch:
        stop_after(patch, at)
        assert run(config, output) == 143
    assert run(config, output) == 0


def wait_for(condition, seconds=300):
    """Wait until `condition` holds; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def steps_of(output):
    """Return the steps of the checkpoints in an output directory."""
    return [steps for steps, _ in list_checkpoints(output / "checkpoints")]
