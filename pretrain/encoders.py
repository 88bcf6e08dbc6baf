"""Encoders of any family that has a masked language model in transformers, and their logits.

The head is that of transformers, run on the masked tokens alone: a hook hands it their hidden
states in place of those of all tokens. So no family needs code of its own; the price is a forward
that only this package can read, which is compared with the library's at the start (inputs.py).
"""

import logging
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_MASKED_LM_MAPPING,
    AlbertConfig,
    AlbertForPreTraining,
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine import models
from detalbert.engine.inputs import (
    attention_of,
    is_padded,
    model_inputs,
    pack_or_pad,
    padded_inputs,
    positions,
)
from detalbert.engine.rows import Row
from detalbert.errors import UserError, as_user_error
from pretrain.hparams import ALBERT, PretrainHParams
from pretrain.matching import start_matching

log = logging.getLogger(__name__)


class AlbertForSpanPreTraining(AlbertForPreTraining):
    """ALBERT with a third head, for start and end of a span, which fine-tuning continues with."""

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()


def find_family(hparams: PretrainHParams) -> str:
    """Return transformers' model type of the model to pretrain."""
    if hparams.model is not None:
        return models.named_config(hparams.model).model_type
    return hparams.model_keys().get("model_type", ALBERT)


def model_class(model_type: str, hparams: PretrainHParams) -> Any:
    """Return the class of the model with its heads: ALBERT's own, or that of a masked language
    model.
    """
    if model_type != ALBERT:
        return AutoModelForMaskedLM
    return AlbertForSpanPreTraining if hparams.span_fraction else AlbertForPreTraining


def build_encoder(hparams: PretrainHParams, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Build the encoder with its heads in fp32. Random weights, and heads that named weights lack,
    are drawn from `seed`.

    Args:
        hparams: name the model, or its config.
        tokenizer: its own.

    Raises:
        UserError: if the model cannot be built, lacks weights, or has no masked language model, and
            for a key that is ALBERT's alone, of another model.
    """
    hparams = hparams.of_family(find_family(hparams))
    torch.manual_seed(hparams.known_seed)
    config = pretraining_config(hparams, tokenizer)
    check_masked_lm(config)
    is_albert = config.model_type == ALBERT
    kind = model_class(config.model_type, hparams)
    attention = attention_of(config, MODEL_FOR_MASKED_LM_MAPPING)
    if hparams.model is None:
        model = models.random_model(kind, config, attention)
    else:
        # An ALBERT that was trained without sentence order lacks its pooler.
        load = models.load_weights if is_albert else models.load_encoder
        with as_user_error(partial(models.model_error, hparams.model)):
            model, missing = load(kind, hparams.model, attention)
        _log_random_head(hparams.model, model, missing)
    models.check_vocabulary(model.config, tokenizer)
    if is_albert:
        _prepare_albert(model, hparams)
    else:
        pack_or_pad(model, read_every_token)
    hparams.check_positions(positions(model))
    return model


def _log_random_head(name: str, model: PreTrainedModel, missing: set[str]) -> None:
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


def _prepare_albert(model: AlbertForPreTraining, hparams: PretrainHParams) -> None:
    if hparams.matching_start:
        start_matching(model.albert)
    # Heads that are not trained are frozen: LAMB's weight decay would shrink them.
    if not hparams.sentence_order:
        model.albert.pooler.requires_grad_(False)
        model.sop_classifier.requires_grad_(False)


def pretraining_config(
    hparams: PretrainHParams, tokenizer: PreTrainedTokenizerBase
) -> PretrainedConfig:
    """Return the config of the encoder to pretrain. Raises UserError if there is none."""
    if hparams.model is not None:
        return models.named_config(hparams.model)
    return models.config_from_keys(hparams.model_keys(), tokenizer)


def check_pretraining(hparams: PretrainHParams, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError, before any text is read, for a config of which no encoder is built, or one
    that is too short for the windows; log a warning if its weights are of other tokens.
    """
    models.warn_of_other_tokens(hparams, tokenizer, "they take each token for another")
    config = pretraining_config(hparams, tokenizer)
    check_masked_lm(config)
    models.check_vocabulary(config, tokenizer)
    models.check_encoder(hparams, config, MODEL_FOR_MASKED_LM_MAPPING[type(config)])


def check_masked_lm(config: PretrainedConfig) -> None:
    """Raise UserError unless transformers has a masked language model of `config`'s family."""
    if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
        raise UserError(
            f"transformers has no masked language model of {config.model_type}",
            key="hyperparameters.model",
            cure="use an encoder such as ModernBERT or RoBERTa",
        )


def masked_logits(model: PreTrainedModel, row: Row, places: Tensor) -> Tensor:
    """Return the logits of the tokens at `places` of a row, [M, V].

    Args:
        model: of AutoModelForMaskedLM, packed or padded.
        row: on the model's device.
        places: int64 [M].
    """
    if is_padded(model):
        inputs, bounds = padded_inputs(model, row)
        places = bounds.cell[places]
    else:
        inputs = model_inputs(model, row)

    def gather(encoder: nn.Module, arguments: object, output: Any) -> Any:
        hidden = output.last_hidden_state.flatten(0, 1)  # [T, h], or [n * L, h] of a padded batch
        output.last_hidden_state = hidden[places][None]  # [1, M, h]
        return output

    hook = model.base_model.register_forward_hook(gather)
    try:
        return model(**inputs).logits[0]
    finally:
        hook.remove()


def read_every_token(model: PreTrainedModel, row: Row, tokens: int) -> tuple[Tensor, ...]:
    """Return the logits of a row's first `tokens` tokens, of each token of the vocabulary."""
    places = torch.arange(tokens, device=row["input_ids"].device)
    return masked_logits(model, row, places).unbind(1)
