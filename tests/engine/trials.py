"""The trial of a config, as `train.py` makes it, before its first step."""

import contextlib

import yaml
from determined import core

from detalbert.training.local import trial_context
from detalbert.training.metrics import RunMetrics
from detalbert.training.schedule import LocalStops
from detalbert.training.workload import Training
from tests.conftest import configured
from workloads import choose


def config_file(folder, config, cache_dir, **hparams):
    """Write a config with this feature cache and other hyperparameters; its file."""
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(configured(config, cache_dir, **hparams)))
    return path


@contextlib.contextmanager
def trial_of(config_file, **changes):
    """The trial of a config with these hyperparameters changed; on the CPU."""
    config = yaml.safe_load(config_file.read_text())
    config["hyperparameters"].update(changes)
    workload = choose(config)
    hparams = workload.read(config, config["hyperparameters"])
    training = Training.load(workload, config, hparams, seed=42)
    alone = core.DummyDistributedContext()
    config = training.config
    metrics = RunMetrics(config_file.parent / "out", config["searcher"])
    with trial_context(alone, metrics, LocalStops(alone), config, 0, dict) as context:
        trial = training.workload.trial(context, (training.hparams, training.data))
        trial.meter.reset()
        yield trial


def first_batch(trial):
    return next(iter(trial.build_training_data_loader()))


def one_step(trial, step=0):
    """Train on the first batch; the gradients that the optimizer sees."""
    gradients = {}
    optimizer_step = trial.optimizer.step

    def copy_and_step(*args, **kwargs):
        for name, parameter in trial.model.named_parameters():
            gradients[name] = parameter.grad.clone()
        return optimizer_step(*args, **kwargs)

    trial.optimizer.step = copy_and_step
    trial.model.train()
    trial.train_batch(first_batch(trial), 0, step)
    trial.optimizer.step = optimizer_step
    assert gradients, "the optimizer did not step"
    return gradients
