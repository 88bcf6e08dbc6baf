"""Kinds of training and of trained models: a `Workload`, a `Training` that is ready, a `ModelKind`.

A workload is a table of functions and names, not a class to inherit from: train.py calls what is in
it, and needs no module of the workload until it has chosen it. A model is recognized by what its
files say, not by what loads it: so a wrong flag is refused in a moment. The price is a table of
words, which a new workload or class of models must join.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from determined import pytorch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from detalbert.engine.trial import Given, StepTrial
from detalbert.errors import UserError, counted
from detalbert.run_page.outcomes import Outcomes
from detalbert.settings.hparams import StepHParams
from detalbert.settings.sections import Parsers, json_schema
from detalbert.settings.values import Config
from detalbert.squad.answers import Answers
from detalbert.sums import Json, load_json


def is_sharded(folder: Path) -> bool:
    """Return whether `folder` is a checkpoint of a sharded model."""
    return any(folder.glob("shard-*.safetensors"))


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
        if hparams.early_stopping and hparams.early_stopping >= length.validations:
            raise UserError(
                f"{counted(hparams.early_stopping, 'validation')}, and the run has "
                f"{length.validations}",
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


def describe_model(trial: StepTrial) -> str:
    """Return a model's name, whether it starts from random weights, and its size."""
    hparams = trial.hparams
    name = hparams.model or getattr(hparams, "size", None)
    if name is None:
        name = f"{trial.model.config.model_type} of hyperparameters.model_config"
    if trial.starts_from_scratch():
        name += " from random weights"
    return f"{name}, {trial.model.num_parameters():,} parameters"


class ModelKind(NamedTuple):
    """A kind of trained model."""

    name: str
    modes: frozenset[str]  # of predict.py, that it has
    use: str  # what to do with it; {} is its folder


ANSWERING = ModelKind(
    name="a model that answers questions",
    modes=frozenset({"data", "question", "serve", "export"}),
    use="--data, --question, --serve or --export",
)
LANGUAGE = ModelKind(
    name="a language model",
    modes=frozenset({"export"}),
    use="--export DIR, then serve DIR with `transformers serve` or vLLM",
)
ENCODER = ModelKind(
    name="a pretrained encoder",
    modes=frozenset({"export"}),
    use="--export, or fine-tune it: python train.py --config CONFIG --set hyperparameters.model={}",
)
# By words of a checkpoint's trial, or of the class that a config.json names.
_WORDS = {
    "Squad": ANSWERING,
    "Pretrain": ENCODER,
    "ForQuestionAnswering": ANSWERING,
    "ForPreTraining": ENCODER,
    "ForMaskedLM": ENCODER,
}
_CAUSAL = dict.fromkeys(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), LANGUAGE)


def find_kind(folder: Path) -> ModelKind | None:
    """Return the kind of a checkpoint or model folder; None if its files do not say."""
    if is_sharded(folder):
        return LANGUAGE
    try:
        # Determined's file in every checkpoint; else a model folder of transformers.
        trial_file = folder / "load_data.json"
        if trial_file.is_file():
            return _kind_of_trial(load_json(trial_file))
        config = load_json(folder / "config.json")
        (class_name,) = config["architectures"]
        return _CAUSAL.get(class_name) or _find_word(class_name)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _find_word(name: str) -> ModelKind | None:
    """Return the kind of the first word of _WORDS that is in `name`, of a class."""
    for word, kind in _WORDS.items():
        if word in name:
            return kind
    return None


def _kind_of_trial(saved: Json) -> ModelKind:
    """Return the kind of a checkpoint from what Determined saves of its trial. One of a class that
    is not this package's answers questions if it has their windows.
    """
    trial = saved["trial_cls_spec"]
    kind = _find_word(trial)
    if kind is not None:
        return kind
    if "doc_stride" in saved["hparams"]:
        return ANSWERING
    name = f"a checkpoint of {trial}, a workload of your own"
    return ModelKind(name=name, modes=frozenset(), use="")


def check_mode(mode: str, folder: Path) -> ModelKind:
    """Return the kind of a model, by default ANSWERING.

    Args:
        mode: of predict.py, as its flag is called without dashes.
        folder: of the model.

    Raises:
        UserError: predict.py does not have `mode` for it.
    """
    kind = find_kind(folder) or ANSWERING
    if not kind.modes:
        raise UserError(
            f"{folder} is {kind.name}, and predict.py is for questions and text",
            key=f"--{mode}",
            cure="load it in code of that workload",
        )
    if mode not in kind.modes:
        raise UserError(
            f"{folder} is {kind.name}", key=f"--{mode}", cure=f"give {kind.use.format(folder)}"
        )
    return kind


def check_start(name: str, language: bool) -> None:
    """Raise UserError if a training cannot start from a checkpoint or model folder.

    Args:
        name: of the folder; a hub name and "" are taken for right.
        language: whether a language model is to be trained.
    """
    kind = find_kind(Path(name))
    if kind is None:
        return
    if is_sharded(Path(name)):
        cure = f"export it first: python predict.py --model {name} --export DIR"
    elif language and kind is not LANGUAGE:
        cure = "give a language model, or hyperparameters.model_config"
    else:
        return
    raise UserError(f"{name} is {kind.name}", key="hyperparameters.model", cure=cure)
