"""What train.py drives: a `Workload` for each kind of training, and a `Training` that is ready."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from determined import pytorch

from detalbert.engine.optim import plan_steps
from detalbert.engine.trial import Given, StepTrial
from detalbert.errors import UserError
from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers

# These change how a run is carried out, or at most its rounding, not what it computes.
FREE = {
    "activation_checkpointing",
    "allreduce_dtype",
    "checkpoint_period",
    "compile",
    "epochs",  # spelled out as max_steps
    "layout",
    "max_tokens_per_forward",
    "num_workers",
    "profile_steps",
    "reporting_period",
    "spot_notice",
    "threads",
    "validation_period",
}


class DataSummary(NamedTuple):
    """What a run says of its data: a line for each part, and what a training epoch holds."""

    lines: dict[str, str]
    windows: int
    tokens: int


class Workload(NamedTuple):
    """A kind of training.

    `load` gives data with `fingerprints()`, what must not change over a restart, by config key, and
    `summary()`, a `DataSummary`. `trial` takes the context and (hparams, data).
    """

    parsers: Parsers
    load: Callable[[dict[str, Any], Any], Any]  # (`data:`, hparams) -> data
    trial: Callable[[pytorch.PyTorchTrialContext, Given], StepTrial]
    check: Callable[[Mapping[str, Any], Any, Sequence[str]], None]  # preflight.check, or its like
    metrics: tuple[str, ...]  # that a validation gives, beside `loss`
    metric: str  # the searcher's, where the config names none
    shown: tuple[str, ...]  # of a validation, in what a run prints
    leaves: str  # what is in the output directory
    smaller_is_better: tuple[str, ...] = ("loss",)  # of which metrics
    sharded: bool = False  # whether a model is split over the processes

    def read(self, config: dict[str, Any], values: Mapping[str, Any]) -> StepHParams:
        """Check `values` and return the hyperparameters; set missing defaults in `config` of
        `searcher.metric` and `searcher.smaller_is_better`.

        Raises UserError, also for a `searcher.metric` that no validation gives: that must not end
        a run after hours of training.
        """
        metric = config["searcher"].setdefault("metric", self.metric)
        known = ["loss", *self.metrics]
        if metric not in known:
            raise UserError(
                f"searcher.metric: validation gives no {metric!r}; choose one of {', '.join(known)}"
            )
        config["searcher"].setdefault("smaller_is_better", metric in self.smaller_is_better)
        return self.parsers.hyperparameters(values)


class Training(NamedTuple):
    """An experiment that is ready to run: its data loaded, every hyperparameter spelled out."""

    workload: Workload
    config: dict[str, Any]
    hparams: StepHParams
    data: Any

    @classmethod
    def load(
        cls, workload: Workload, config: dict[str, Any], hparams: StepHParams, seed: int
    ) -> "Training":
        """Load the data; the number of steps and the periods follow from its size.

        Args: seed: of the trial, for hyperparameters that name none.
        """
        if hparams.seed is None:
            hparams = dataclasses.replace(hparams, seed=seed)
        data = workload.load(config["data"], hparams)
        windows = data.summary().windows
        steps, _ = plan_steps(hparams, windows)
        # Rounded up, as the steps are: else the last validation would be followed by one more.
        epoch = math.ceil(windows / hparams.global_batch_size)
        hparams = dataclasses.replace(
            hparams,
            max_steps=steps,
            checkpoint_period=hparams.checkpoint_period or epoch,
            validation_period=hparams.validation_period or epoch,
        )
        config = {**config, "hyperparameters": dataclasses.asdict(hparams)}
        return cls(workload, config, hparams, data)

    def trial(self, context: pytorch.PyTorchTrialContext) -> StepTrial:
        """The workload's trial, with these hyperparameters and data."""
        return self.workload.trial(context, (self.hparams, self.data))

    def identity(self) -> dict[str, Any]:
        """What a checkpoint and a run that goes on from it must have in common, by config key."""
        kept = {k: v for k, v in dataclasses.asdict(self.hparams).items() if k not in FREE}
        values = {f"hyperparameters.{key}": value for key, value in kept.items()}
        return json.loads(json.dumps({**values, **self.data.fingerprints()}))

    def defaults(self) -> dict[str, Any]:
        """The default of every config key that has one: what a run had that knew no such key."""
        data = self.workload.parsers.data(self.config["data"])
        found = {
            f"{section}.{field.name}": field.default
            for section, values in (("hyperparameters", self.hparams), ("data", data))
            for field in dataclasses.fields(values)
            if field.default is not dataclasses.MISSING
        }
        return json.loads(json.dumps(found))
