"""Demands of a pretraining on each GPU."""

from collections.abc import Mapping
from typing import Any

from transformers import MODEL_FOR_MASKED_LM_MAPPING, AlbertForPreTraining, PretrainedConfig

from detalbert.engine.memory import Sizes
from detalbert.engine.models import encoder_sizes
from detalbert.settings.text import parse_text_config
from detalbert.training.sizing import Demand, Model, Sizing, Slots, encoder_config, encoder_demand
from pretrain.corpus import model_tokenizer
from pretrain.encoders import check_masked_lm
from pretrain.hparams import ALBERT, PretrainHParams


def _find_config(config: Mapping[str, Any], hparams: PretrainHParams) -> PretrainedConfig | None:
    model_tokenizer(parse_text_config(config["data"]), hparams)  # a model_config brings none
    return encoder_config(hparams.model, hparams.model_keys())


def _count(config: PretrainedConfig) -> Sizes | None:
    if config.model_type == ALBERT:
        return encoder_sizes(config, AlbertForPreTraining)
    check_masked_lm(config)
    return encoder_sizes(config, MODEL_FOR_MASKED_LM_MAPPING[type(config)])


def _demand(model: Model, hparams: PretrainHParams, slots: Slots) -> Demand:
    return encoder_demand(
        model,
        hparams,
        slots,
        task="pretraining",
        window=float(hparams.max_seq_length),
        masked=hparams.masked_fraction,
    )


SIZING = Sizing(find_config=_find_config, count_sizes=_count, demand=_demand)
