"""Interface of train.py: a `Workload` per kind of training, and a `Training` that is ready."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from determined import pytorch

from detalbert.engine.trial import Given, StepTrial
from detalbert.errors import UserError, nearest
from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers
from detalbert.settings.values import Config
from detalbert.training.model_kind import check_start
from detalbert.training.sizing import ENCODER_SIZING, Sizing

# These change how a run is carried out, or at most its rounding, not what it computes. `epochs` is
# spelled out as `max_steps`.
FREE = set(
    "activation_checkpointing allreduce_dtype checkpoint_period compile early_stopping epochs "
    "layout max_tokens_per_forward num_workers profile_steps reporting_period samples "
    "spot_notice threads validation_period".split()
)


class DataSummary(NamedTuple):
    """Summary of the data: a line per split, and windows and tokens of a training epoch."""

    lines: dict[str, str]
    windows: int
    tokens: int
    validation_windows: int | None = None  # of the held-out text; a validation may use fewer


class Workload(NamedTuple):
    """A kind of training.

    `load` returns data with `fingerprints()`, values that must not change when a run is resumed, by
    config key, and `summary()`, a `DataSummary`. `trial` takes the context and (hparams, data).
    """

    parsers: Parsers
    load: Callable[[dict[str, Any], Any], Any]  # (`data:`, hparams) -> data
    trial: Callable[[pytorch.PyTorchTrialContext, Given], StepTrial]
    check: Callable[[Mapping[str, Any], Any, Sequence[str]], None]  # preflight.check, or its like
    metrics: tuple[str, ...]  # that a validation gives, beside `loss`
    metric: str  # the searcher's, where the config names none
    use: str = ""  # command for a trained model, with {} for the run's output directory
    smaller_is_better: tuple[str, ...] = ("loss",)  # of which metrics
    sharded: bool = False  # whether a model is split over the processes
    sizing: Sizing = ENCODER_SIZING  # what a job needs of each GPU, for the planner

    def read(self, config: Config, values: Mapping[str, Any]) -> StepHParams:
        """Check `values` and the data's keys, and return the hyperparameters; set missing
        `searcher.metric` and `searcher.smaller_is_better` in `config`. Raises UserError, also if
        `model` is of another kind or `check_searcher` does: hours of training would be for nothing.
        """
        searcher = config["searcher"]
        searcher.setdefault("metric", self.metric)
        searcher.setdefault("smaller_is_better", searcher["metric"] in self.smaller_is_better)
        self.check_searcher(searcher)
        self.parsers.data(config["data"])
        hparams = self.parsers.hyperparameters(values)
        check_start(hparams.model or "", language=self.sharded)
        return hparams

    def check_searcher(self, searcher: Mapping[str, Any]) -> None:
        """Raise UserError unless a validation reports `searcher.metric`, and less of it is better
        exactly if `searcher.smaller_is_better` says so.
        """
        metric = searcher["metric"]
        reported = ["loss", *self.metrics]
        if metric not in reported:
            raise UserError(
                f"validation gives no {metric!r}",
                key="searcher.metric",
                cure=nearest(metric, reported),
            )
        smaller = metric in self.smaller_is_better
        if searcher["smaller_is_better"] is not smaller:
            raise UserError(
                f"would keep the worst {metric}",
                key="searcher.smaller_is_better",
                cure=f"set smaller_is_better: {str(smaller).lower()}",
            )


class Training(NamedTuple):
    """An experiment ready to run: its data loaded, all hyperparameters explicit."""

    workload: Workload
    config: Config
    hparams: StepHParams
    data: Any

    @classmethod
    def load(
        cls, workload: Workload, config: Config, hparams: StepHParams, seed: int
    ) -> "Training":
        """Load the data, and derive the number of steps and the periods from its size. `seed` is
        the trial's, for hyperparameters without one.
        """
        if hparams.seed is None:
            hparams = dataclasses.replace(hparams, seed=seed)
        data = workload.load(config["data"], hparams)
        windows = data.summary().windows
        length = hparams.length(windows)
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
        settings = {}
        for key, value in dataclasses.asdict(self.hparams).items():
            if key not in FREE:
                settings[f"hyperparameters.{key}"] = value
        return json.loads(json.dumps({**settings, **self.data.fingerprints()}))

    def defaults(self) -> Config:
        """Return the defaults by config key, for runs whose version did not know a key."""
        sections: dict[str, Any] = {
            "hyperparameters": self.hparams,
            "data": self.workload.parsers.data(self.config["data"]),
        }
        defaults = {}
        for section, values in sections.items():
            for field in dataclasses.fields(values):
                if field.default is not dataclasses.MISSING:
                    defaults[f"{section}.{field.name}"] = field.default
        return json.loads(json.dumps(defaults))
