"""Checks of an experiment's model before its data is read: from configs, without weights.

What is read of the data, or written of it, may take hours; a model that cannot be trained on it is
refused before that. The price is that a model is built twice, the first time without memory.
"""

import logging

from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine.models import empty_encoder, span_config, starts_from_scratch
from detalbert.engine.padded import positions
from detalbert.errors import UserError
from detalbert.settings.hparams import HParams, StepHParams

log = logging.getLogger(__name__)


def check_span_model(hparams: HParams, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError, before any data is read, for a config that `build_span_model` refuses; log a
    warning if it does not use the named model's weights.
    """
    warn_of_other_tokens(hparams, tokenizer, "they are not used, and random ones are trained")
    config = span_config(hparams, tokenizer)
    check_encoder(hparams, config, MODEL_FOR_QUESTION_ANSWERING_MAPPING.get(type(config), None))


def warn_of_other_tokens(
    hparams: StepHParams, tokenizer: PreTrainedTokenizerBase, consequence: str
) -> None:
    """Log a warning if the named model was trained with other tokens than the tokenizer's.

    Args:
        consequence: what happens with its weights.
    """
    if hparams.model is not None and starts_from_scratch(hparams, tokenizer):
        log.warning(
            "data.tokenizer: its tokens are not those of the weights of %s: %s; leave "
            "data.tokenizer out, or set hyperparameters.model_config in place of model",
            hparams.model,
            consequence,
        )


def check_encoder(
    hparams: StepHParams, config: PretrainedConfig, model_class: type[PreTrainedModel] | None
) -> None:
    """Raise UserError if a window is longer than an encoder's table of positions, or the config
    makes it a decoder. No weights are read.

    Args:
        config: of the encoder.
        model_class: transformers' of the model; None: it has none, which is said elsewhere.
    """
    key = "hyperparameters.model_config.is_decoder"
    if hparams.model is not None:
        key = f"{hparams.model}: config.json.is_decoder"
    if getattr(config, "is_decoder", False):
        raise UserError(
            "true: each token would attend to those before it alone",
            key=key,
            cure="set it to false",
        )
    if model_class is not None:
        hparams.check_positions(positions(empty_encoder(config, model_class)))


def log_random_head(name: str, model: PreTrainedModel, missing: set[str]) -> None:
    """Log which parts of a head are drawn at random, if weights are missing.

    Args:
        name: of the weights.
        model: with this head.
        missing: names of the model's parameters without weights.
    """
    encoder = f"{model.base_model_prefix}."
    heads = {name.split(".")[0] for name in missing if not name.startswith(encoder)}
    if heads:
        log.info(
            "%s has no weights for %s: drawn at random, from the seed",
            name,
            ", ".join(sorted(heads)),
        )
