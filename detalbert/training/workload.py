"""Interface of train.py: a `Workload` per kind of training, and a `Training` that is ready.

A workload is a table of functions and names, not a class to inherit from: train.py
calls what is in it, and needs no module of the workload until it has chosen it.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from determined import pytorch

from detalbert.engine.trial import Given, StepTrial
from detalbert.errors import UserError
from detalbert.run_page.outcomes import Outcomes
from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers, json_schema
from detalbert.settings.values import Config
from detalbert.squad.answers import Answers
from detalbert.training.model_kind import check_start


class DataSummary(NamedTuple):
    """Summary of the data: a line per split, and windows and tokens of a training epoch."""

    lines: dict[str, str]
    windows: int
    tokens: int
    validation_windows: int | None = None  # of the held-out text; a validation may use fewer


class TrainingData(Protocol):
    """Data of an experiment, as far as every workload's are alike."""

    def fingerprints(self) -> Config:
        """Return the values that must not change when a run is resumed, by config key."""

    def summary(self) -> DataSummary:
        """Return windows and tokens of an epoch, and a line per split."""


class Workload(NamedTuple):
    """A kind of training. Its functions take hyperparameters of its own class."""

    parsers: Parsers
    # From `data:` and the hyperparameters to the data.
    load: Callable[[Config, Any], TrainingData]
    # From the context and (hyperparameters, data) to the trial.
    trial: Callable[[pytorch.PyTorchTrialContext, Given], StepTrial]
    # Commands for a trained model by their purpose, the most likely first, with {} for the run's
    # output directory.
    commands: Mapping[str, str] = MappingProxyType({})
    # From a trial and the answers of a validation to what the page of a run shows of them; None:
    # its validations have no answers.
    outcomes: Callable[[Any, Answers], Outcomes] | None = None
    # Whether a model is split over the ranks.
    sharded: bool = False

    def read(self, config: Config, values: Mapping[str, Any]) -> StepHParams:
        """Check an experiment's own sections, and return its hyperparameters.

        Args:
            config: of the experiment, with the master's defaults.
            values: of `hyperparameters:`, search ranges replaced.

        Raises:
            UserError: a section is wrong, `model` is of another kind or `searcher.metric` is:
                hours of training would be for nothing.
        """
        self.parsers.check_searcher(config["searcher"])
        _, hparams = self.parsers.both(config["data"], values)
        check_start(hparams.model or "", language=self.sharded)
        return hparams


class Training(NamedTuple):
    """An experiment ready to run: its data loaded, all hyperparameters explicit."""

    workload: Workload
    config: Config
    hparams: StepHParams
    data: TrainingData

    @classmethod
    def load(
        cls, workload: Workload, config: Config, hparams: StepHParams, seed: int
    ) -> "Training":
        """Load the data, and derive the number of steps and the periods from its size.

        Args:
            workload: of the experiment.
            config: of the experiment; `hyperparameters:` is replaced by all of them.
            hparams: as `Workload.read` returns them.
            seed: the trial's, for hyperparameters without one.

        Raises:
            UserError: the data cannot be loaded, or the run has too few validations for
                `early_stopping`.
        """
        if hparams.seed is None:
            hparams = dataclasses.replace(hparams, seed=seed)
        data = workload.load(config["data"], hparams)

        # Without `max_steps` the length of a run is that of its data.
        length = hparams.length(data.summary().windows)
        hparams = dataclasses.replace(
            hparams,
            max_steps=length.steps,
            checkpoint_period=length.checkpoint,
            validation_period=length.validation,
        )
        if (hparams.early_stopping or 0) >= length.validations:
            raise UserError(
                f"{hparams.early_stopping} validations, and the run has {length.validations}",
                key="hyperparameters.early_stopping",
                cure="lower it, or validation_period",
            )
        config = {**config, "hyperparameters": dataclasses.asdict(hparams)}
        return cls(workload=workload, config=config, hparams=hparams, data=data)

    def identity(self) -> Config:
        """Return the settings that must not change when a run is resumed, by config key."""
        properties = json_schema(type(self.hparams))["properties"]
        settings = {}
        for key, value in dataclasses.asdict(self.hparams).items():
            if not properties[key].get("changeable"):
                settings[f"hyperparameters.{key}"] = value
        settings |= self.data.fingerprints()
        return json.loads(json.dumps(settings))  # as read from a manifest

    def defaults(self) -> Config:
        """Return the defaults by config key, for runs whose version did not know a key."""
        sections: dict[str, Any] = {
            "hyperparameters": self.hparams,
            "data": self.workload.parsers.data(self.config["data"]),
        }
        defaults = {}
        for section, values in sections.items():
            for name, described in json_schema(type(values))["properties"].items():
                if "default" in described:
                    defaults[f"{section}.{name}"] = described["default"]
        return json.loads(json.dumps(defaults))
