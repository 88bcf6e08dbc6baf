"""A trained model for answering: from a checkpoint, a run, a cluster or an exported folder.

Weights are read by safe loading only: tensors and numbers, no code. Whatever the folder, the result
is the same `Trained`, whose forward pass is the one of training and validation: a question gets
the same logits everywhere, at the price of a model that only this package can call.
"""

import contextlib
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine import determinism
from detalbert.engine.forward import Forward
from detalbert.engine.inputs import attention_of, follow_tokenizer, pack_or_pad, positions
from detalbert.engine.models import check_vocabulary, lacks_tokenizer, load_weights, random_model
from detalbert.engine.rows import ReadLogits, Row
from detalbert.engine.safe_load import check_finite_weights, is_usable, read_config, read_weights
from detalbert.errors import NotFinite, UserError, as_user_error, first_line
from detalbert.hub import PRETRAINED, STATE_DICT, find_local
from detalbert.inference.find import EXPERIMENT, find, read_json
from detalbert.settings.hparams import HParams, parse_hparams
from detalbert.settings.sections import Section, parse_section, strict_dataclass
from detalbert.squad.calibration import is_calibrated
from detalbert.sums import Json, load_json
from detalbert.training.folder import SCORES, read_metrics
from detalbert.training.manifest import MANIFEST, find_fault
from detalbert.training.workload import check_mode

SETTINGS = "question_answering.json"  # in an exported folder: what is no part of a library config


@strict_dataclass
class ModelSettings(Section):
    """Settings of a model folder, beside weights, config and tokenizer."""

    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    data: dict[str, Any] = Field(default_factory=dict)
    scores: dict[str, int | float] = Field(default_factory=dict)
    steps: int | None = None


class Trained(NamedTuple):
    """A model on its device, in evaluation mode, with the settings it was validated with."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    hparams: HParams
    forward: Forward  # the model as it runs on its device
    scores: dict[str, float]  # of its validation; empty where there was none
    data: Json  # `data:` of its experiment config; empty for a folder of another make
    steps: int | None  # optimizer steps trained, where known
    name: str  # the last part of what the user gave

    @property
    def is_calibrated(self) -> bool:
        """Whether its probabilities are the shares of answers that are right."""
        return is_calibrated(self.scores)


def load_model(name: str) -> Trained:
    """Load a model that answers questions, onto the current GPU if there is one.

    Args:
        name: what `find` accepts.

    Raises:
        UserError: the model answers no questions, does not load, or has odd settings.
    """
    # Before anything is computed: the same kernels as in training.
    determinism.choose_exact_kernels()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = find(name)
    check_mode("data", folder)  # in a trial, too
    is_checkpoint = (folder / STATE_DICT).is_file()
    with as_user_error(partial(_not_loaded, folder)):
        values = read_settings(folder) if is_checkpoint else read_json(folder / SETTINGS)
        settings = parse_section(ModelSettings, f"{folder}: settings", values)
        model = _read_checkpoint(folder) if is_checkpoint else _read_export(folder)
        tokenizer = AutoTokenizer.from_pretrained(find_local(str(folder)), trust_remote_code=False)
        hparams = parse_hparams(settings.hyperparameters or _default_hparams(folder, model))

        # A folder of another make was trained as its tokenizer's config says.
        if not is_checkpoint and not (folder / SETTINGS).is_file():
            follow_tokenizer(model, tokenizer)
        forward = prepare(model, tokenizer, hparams, device)
    return Trained(
        model=model,
        tokenizer=tokenizer,
        hparams=hparams,
        forward=forward,
        scores=settings.scores,
        data=settings.data,
        steps=settings.steps,
        name=Path(name).name,
    )


def _not_loaded(folder: Path, error: BaseException) -> UserError:
    problem = f"does not load as a model: {first_line(error)}"
    return UserError(problem, key=str(folder), cure="give another")


def read_settings(folder: Path) -> Json:
    """Return the settings of a checkpoint, as an exported folder has them: `hyperparameters`,
    `scores`, `data` and `steps`. Raises UserError if the checkpoint is damaged or incomplete.
    """
    # A cluster's checkpoints may have no manifest: there the master knows which are complete.
    if (folder / MANIFEST).is_file():
        fault = find_fault(folder)
        if fault is not None:
            problem = f"not a complete checkpoint ({fault})"
            raise UserError(problem, key=str(folder), cure="give another")
    if not (folder / "load_data.json").is_file() or not (folder / PRETRAINED).is_dir():
        raise UserError(
            f"not a checkpoint of this package (it needs load_data.json and {PRETRAINED}/)",
            key=str(folder),
            cure="give one that train.py wrote",
        )
    # Determined writes these files; the scores are this package's own.
    trial = load_json(folder / "load_data.json")
    config = trial.get("experiment_config") or {}
    scores = read_json(folder / SCORES)
    scores.pop("language", None)  # which `data` has, too
    return {
        "hyperparameters": trial["hparams"],
        "scores": scores,
        "data": config.get("data") or {},
        "steps": read_json(folder / "metadata.json").get("steps_completed"),
    }


def find_scores(checkpoint: Path, steps: int | None) -> dict[str, float]:
    """Return the scores of a checkpoint's validation, {} if unknown: from `experiment.json`
    (downloaded), else the manifest, else the run's metrics.json.

    Args:
        steps: after which the checkpoint was saved.
    """
    if (checkpoint / EXPERIMENT).is_file():
        return read_json(checkpoint / EXPERIMENT).get("scores") or {}

    # The manifest has the validations until the checkpoint, the run's metrics the last one.
    metrics = read_metrics(checkpoint.absolute().parent.parent) or {}
    validations = [*(read_json(checkpoint / MANIFEST).get("validations") or [])]
    validations += [metrics.get(key) or {} for key in ("best", "last")]
    for validation in validations:
        if steps and validation.get("steps") == steps:
            return {name: value for name, value in validation.items() if name != "steps"}
    return {}


def _read_checkpoint(folder: Path) -> PreTrainedModel:
    config = read_config(folder / PRETRAINED)
    attention = attention_of(config)
    model = random_model(AutoModelForQuestionAnswering, config, attention, name=str(folder))
    model.load_state_dict(read_weights(folder / STATE_DICT))
    check_finite_weights(str(folder), model.named_parameters())
    return model


def _read_export(folder: Path) -> PreTrainedModel:
    """Load a model folder of transformers, an export of this package or not."""
    model, missing = load_weights(
        AutoModelForQuestionAnswering,
        str(folder),
        attention=attention_of(read_config(folder)),
        use_safetensors=True,
    )
    # transformers would draw missing weights at random, and only log it.
    if missing:
        raise UserError(
            f"its weights lack {min(missing)!r}, so it is not trained to answer questions",
            key=str(folder),
            cure="give a fine-tuned model",
        )
    if lacks_tokenizer(folder):
        cure = "put the model's own beside its weights"
        raise UserError("it has no tokenizer", key=str(folder), cure=cure)
    return model


def _default_hparams(folder: Path, model: PreTrainedModel) -> Json:
    """Return hyperparameters for a model without any: windows of 384 tokens, if it takes these."""
    longest = positions(model) or 384
    return {"model": str(folder), "max_seq_length": min(384, longest)}


def prepare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    hparams: HParams,
    device: torch.device,
) -> Forward:
    """Move `model` to `device`, in evaluation mode; return its forward pass, compiled.

    Raises:
        UserError: the model does not run, or has fewer tokens than the tokenizer.
    """
    # Rows are packed, if the model's attention can be told where a window ends; else padded.
    check_vocabulary(model.config, tokenizer)
    pack_or_pad(model)
    model = model.to(device).eval()
    forward = Forward(model, hparams.precision, device, compiled=hparams.compile)
    forward.refresh()

    # Layers are compiled on one row for rows of any size; without a budget, of two windows.
    longest = hparams.max_seq_length
    budget = hparams.max_tokens_per_forward
    tokens = 2 * longest if budget == "auto" else budget
    forward.compile_layers(tokens, longest, training=False)
    forward.read_logits = partial(_read_finite, forward.read_logits)
    return forward


def _read_finite(
    read_logits: ReadLogits, model: nn.Module, row: Row, tokens: int
) -> tuple[Tensor, ...]:
    """Return the logits of a row. Raises NotFinite if they are no numbers to answer by."""
    logits = read_logits(model, row, tokens)
    if not all(map(is_usable, logits)):
        raise NotFinite("the model's logits are not finite numbers", cure="give another --model")
    return logits


def choose_threshold(trained: Trained, wanted: str | None = None) -> float:
    """Return the null odds above which the model abstains.

    Args:
        wanted: `--threshold`: a number, or `best` (for F1 at validation); None: the run's own.

    Raises:
        UserError: `wanted` is anything else, or `best` and no validation was recorded.
    """
    if wanted is None:
        return trained.hparams.null_score_diff_threshold
    threshold = math.nan
    with contextlib.suppress(ValueError, KeyError):
        threshold = float(trained.scores["best_f1_thresh"] if wanted == "best" else wanted)
    if not math.isfinite(threshold):
        cure = "give a number, or best if a validation is recorded with the model"
        raise UserError("no threshold", key=f"--threshold {wanted}", cure=cure)
    return threshold
