"""Sizes of an encoder that determine its memory, without its weights."""

import contextlib
from pathlib import Path

import torch
from transformers import MODEL_FOR_QUESTION_ANSWERING_MAPPING, AutoConfig, PretrainedConfig

from detalbert import hub
from detalbert.engine.memory import Sizes
from detalbert.engine.safe_load import read_config
from detalbert.errors import UserError, first_line
from detalbert.hub import find_local, hub_error, is_checkpoint
from detalbert.settings.hparams import HParams

WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


def find_sizes(hparams: HParams) -> Sizes | None:
    """Return the sizes of the model to fine-tune; None if its config builds no model.
    `models.build_model` reports such configs. Raises UserError if model or weights are missing.
    """
    if hparams.model is None:
        keys = {"model_type": "albert", **(hparams.model_config or {})}
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return encoder_sizes(AutoConfig.for_model(keys.pop("model_type"), **keys))
        return None
    path = Path(find_local(hparams.model))
    weights = is_checkpoint(hparams.model) or any(list(path.glob(name)) for name in WEIGHT_FILES)
    if path.is_dir() and not weights:
        raise UserError(
            f"hyperparameters.model: {hparams.model!r} has no weights in this container; "
            ".detignore may have kept them out of the upload"
        )
    try:
        return encoder_sizes(hub.load(read_config, hparams.model))
    except (OSError, ValueError, KeyError) as error:
        raise hub_error(error)(
            f"hyperparameters.model: {hparams.model!r} is no folder here, and the hub does not "
            f"give it: {first_line(error)}"
        ) from None


def encoder_sizes(config: PretrainedConfig) -> Sizes | None:
    """Return the sizes of `config`'s question-answering model; None if transformers has none."""
    if type(config) not in MODEL_FOR_QUESTION_ANSWERING_MAPPING:
        return None
    # The class first: under a meta device transformers cannot import its module with torch 2.6.
    model_class = MODEL_FOR_QUESTION_ANSWERING_MAPPING[type(config)]
    with torch.device("meta"):
        model = model_class(config)
    return Sizes.of(config, sum(parameter.numel() for parameter in model.parameters()))
