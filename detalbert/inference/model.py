"""A trained model for answering: from a checkpoint, a run, a cluster or an exported folder.

Weights are read by safe loading only: tensors and numbers, no code.
"""

import contextlib
import json
import logging
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine import determinism
from detalbert.engine.finite import check_finite_weights, is_usable
from detalbert.engine.forward import Forward, Read
from detalbert.engine.models import check_vocabulary, lacks_tokenizer, load_weights
from detalbert.engine.padded import attention_of, pack_or_pad, positions
from detalbert.engine.safe_load import read_config, read_weights
from detalbert.engine.segments import follow_tokenizer
from detalbert.errors import NotFinite, UserError, all_lines, as_user_error
from detalbert.hub import PRETRAINED, STATE_DICT, find_local
from detalbert.inference.find import EXPERIMENT, find, read_json
from detalbert.settings.hparams import HParams, parse_hparams
from detalbert.squad.calibration import NULL, SPAN
from detalbert.training.folder import SCORES
from detalbert.training.manifest import MANIFEST, find_fault
from detalbert.training.metrics_file import read_metrics
from detalbert.training.model_kind import check_mode
from detalbert.waiting import reading

SETTINGS = "question_answering.json"  # in an exported folder: what is no part of a library config
log = logging.getLogger(__name__)


class Trained(NamedTuple):
    """A model on its device, in evaluation mode, with the settings it was validated with."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    hparams: HParams
    forward: Forward  # the model as it runs on its device
    scores: dict[str, float]  # of its validation; empty where there was none
    data: dict[str, Any]  # `data:` of its experiment config; empty for a folder of another make
    steps: int | None  # optimizer steps trained, where known


def load_model(name: str, device: torch.device | None = None) -> Trained:
    """Load the model that `name` refers to (see `find`); default device: a GPU if there is one.
    Raises UserError if it answers no questions, or does not load.
    """
    determinism.choose_exact_kernels()
    device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = find(name)
    check_mode("data", folder)  # in a trial, too
    what = f"{folder}: does not load as a model"
    with as_user_error(lambda error: UserError(f"{what}: {all_lines(error)}; give another")):
        checkpoint = (folder / STATE_DICT).is_file()
        read = _read_checkpoint if checkpoint else _read_export
        settings, model = read(folder)
        tokenizer = AutoTokenizer.from_pretrained(find_local(str(folder)), trust_remote_code=False)
        hparams = parse_hparams(settings["hyperparameters"])
        if not (checkpoint or (folder / SETTINGS).is_file()):  # its config says how it was trained
            follow_tokenizer(model, tokenizer)
        forward = prepare(model, tokenizer, hparams, device)
    facts = settings.get("scores") or {}, settings.get("data") or {}, settings.get("steps")
    return Trained(model, tokenizer, hparams, forward, *facts)


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a checkpoint, as an exported folder has them. Raises UserError if the
    checkpoint is damaged or incomplete.
    """
    if (folder / MANIFEST).is_file() and (fault := find_fault(folder)):
        raise UserError(f"{folder}: not a complete checkpoint ({fault}); give another")
    if not (folder / "load_data.json").is_file() or not (folder / PRETRAINED).is_dir():
        said = f"not a checkpoint of this package (it needs load_data.json and {PRETRAINED}/)"
        raise UserError(f"{folder}: {said}; give one that train.py wrote")
    facts = json.loads((folder / "load_data.json").read_text())
    settings = {"hyperparameters": facts["hparams"], "scores": read_json(folder / SCORES)}
    settings["data"] = (facts.get("experiment_config") or {}).get("data") or {}
    settings["steps"] = read_json(folder / "metadata.json").get("steps_completed")
    return settings


def find_scores(checkpoint: Path, steps: int | None) -> dict[str, float]:
    """Return the scores of a checkpoint's validation, {} if unknown: from `experiment.json`
    (downloaded), else the manifest, else the run's metrics.json.
    """
    if (checkpoint / EXPERIMENT).is_file():
        return read_json(checkpoint / EXPERIMENT)["scores"]
    run = checkpoint.absolute().parent.parent
    known = [*(read_json(checkpoint / MANIFEST).get("validations") or [])]
    metrics = read_metrics(run) or {}
    known += [metrics.get("best") or {}, metrics.get("last") or {}]
    scores = next((dict(each) for each in known if steps and each.get("steps") == steps), {})
    scores.pop("steps", None)
    return scores


def _read_checkpoint(folder: Path) -> tuple[dict[str, Any], PreTrainedModel]:
    settings = read_settings(folder)
    config = read_config(folder / PRETRAINED)
    model = AutoModelForQuestionAnswering.from_config(
        config,
        attn_implementation=attention_of(config),
        dtype=torch.float32,
        trust_remote_code=False,
    )
    with reading(f"loading the weights of {folder}", [folder / STATE_DICT]):
        model.load_state_dict(read_weights(folder / STATE_DICT))
        check_finite_weights(str(folder), model.named_parameters())
    return settings, model


def _read_export(folder: Path) -> tuple[dict[str, Any], PreTrainedModel]:
    settings = read_json(folder / SETTINGS)
    attention, how = attention_of(read_config(folder)), {"use_safetensors": True}
    model, missing = load_weights(AutoModelForQuestionAnswering, str(folder), attention, **how)
    if missing:
        said = f"its weights lack {min(missing)!r}, so it is not trained to answer questions"
        raise UserError(f"{folder}: {said}; give a fine-tuned model")
    if lacks_tokenizer(folder):
        raise UserError(f"{folder}: it has no tokenizer; put the model's own beside its weights")
    if not settings.get("hyperparameters"):
        sizes = {"max_seq_length": min(384, positions(model) or 384)}
        settings["hyperparameters"] = {"model": str(folder), **sizes}
    return settings, model


def prepare(model: Any, tokenizer: Any, hparams: HParams, device: torch.device) -> Forward:
    """Move `model` to `device`, in evaluation mode; return its forward pass, compiled. Raises
    UserError if the model does not run, or has fewer tokens than the tokenizer.
    """
    check_vocabulary(model.config, tokenizer)
    pack_or_pad(model)
    forward = Forward(model.to(device).eval(), hparams.precision, device, hparams.compile)
    forward.refresh()
    budget, longest = hparams.max_tokens_per_forward, hparams.max_seq_length
    forward.compile_layers(2 * longest if budget == "auto" else budget, longest, training=False)
    forward.read = partial(_read_finite, forward.read)
    return forward


def _read_finite(read: Read, model: nn.Module, row: Any, tokens: int) -> tuple[Tensor, ...]:
    """Return the logits that `read` gives. Raises NotFinite if they are no numbers to answer by."""
    logits = read(model, row, tokens)
    if not all(map(is_usable, logits)):
        raise NotFinite("the model's logits are not finite numbers; give another --model")
    return logits


def choose_threshold(trained: Trained, wanted: str | None = None) -> float:
    """Return `--threshold`: a number, `best` (for F1 at validation), or None: the run's own. Raises
    UserError for anything else, and for `best` if no validation was recorded.
    """
    if wanted is None:
        return trained.hparams.null_score_diff_threshold
    if wanted == "best":
        if "best_f1_thresh" not in trained.scores:
            said = "no validation is recorded with this checkpoint; give a number"
            raise UserError(f"--threshold best: {said}")
        return float(trained.scores["best_f1_thresh"])
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(wanted)):
            return value
    raise UserError(f"--threshold {wanted}: give a number or best")


def choose_probabilities(trained: Trained, raw: bool, said: bool = True) -> Trained:
    """Return the model, without its temperatures if `raw`; say so if it has none and `said`. Raises
    UserError if one is no number above 0.
    """
    if raw:
        return trained._replace(scores={})
    temperatures = {key: trained.scores.get(key, 1) for key in (SPAN, NULL)}
    for key, value in temperatures.items():
        if not (isinstance(value, (int, float)) and 0 < value < math.inf):
            raise UserError(f"--model: its {key} is {value!r}, no number above 0; give --raw")
    if said and set(temperatures.values()) == {1}:
        log.info("no validation fitted this model's probabilities: they are as with --raw")
    return trained
