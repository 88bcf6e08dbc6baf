"""The model and its precision: a hub name, folder or config -> an encoder with a span head."""

from typing import Any, Dict

import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hparams import HParams, UserError, unknown_key
from hub import find_local, hub_error
from packing import PACKED, check_model, first_position


def resolve_precision(precision: str, device: torch.device) -> torch.dtype:
    """The dtype to compute in. "auto" is bf16 on Ampere and newer, fp16 on older NVIDIA GPUs
    and fp32 on a CPU; "fp8" computes in bf16 what is not a matrix product of a layer.

    Raises UserError for a precision that the device cannot do.
    """
    cuda = device.type == "cuda"
    capability = torch.cuda.get_device_capability(device) if cuda else (0, 0)
    key = "hyperparameters.precision"
    if precision == "fp16" and not cuda:
        raise UserError(f"{key}: fp16 needs a GPU; use auto, bf16 or fp32")
    if precision == "bf16" and cuda and capability < (8, 0):
        raise UserError(f"{key}: this GPU has no bf16; use auto or fp16")
    if precision == "fp8" and capability < (8, 9):
        raise UserError(f"{key}: fp8 needs a GPU of the Ada or Hopper generation; use auto")
    if precision == "auto":
        precision = "fp32" if not cuda else "bf16" if capability >= (8, 0) else "fp16"
    return {"fp16": torch.float16, "fp32": torch.float32}.get(precision, torch.bfloat16)


def build_model(hparams: HParams, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """The encoder with a span head, in fp32, its random parts drawn from `seed`.

    A model whose vocabulary is not the tokenizer's keeps its shape and loses its weights: ids
    would mean other pieces, so it starts from random ones (`starts_from_scratch` says so).
    Raises UserError for a model that is not there, has no weights, or is no encoder.
    """
    torch.manual_seed(hparams.seed)
    model = _build(hparams, tokenizer)
    check_model(model)
    positions = model.config.max_position_embeddings - first_position(model)
    if positions < hparams.max_seq_length:
        raise UserError(
            f"hyperparameters.max_seq_length: {hparams.max_seq_length} tokens, and the model has "
            f"{positions} positions; lower it (and doc_stride with it)"
        )
    return model


def _build(hparams: HParams, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    if hparams.model_config is not None:
        return _from_config(_config_from_keys(hparams.model_config, tokenizer))
    path = find_local(hparams.model)
    try:
        if starts_from_scratch(hparams, tokenizer):
            config = AutoConfig.from_pretrained(path)
            config.update(_vocabulary(tokenizer))
            return _from_config(config)
        model, info = AutoModelForQuestionAnswering.from_pretrained(
            path, attn_implementation=PACKED, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise hub_error(error)(
            f"hyperparameters.model: {hparams.model!r} does not load: "
            f"{str(error).strip().splitlines()[0]}"
        ) from None
    missing = [name for name in info["missing_keys"] if not name.startswith("qa_outputs")]
    if missing:
        raise UserError(
            f"hyperparameters.model: the weights of {hparams.model!r} lack {missing[0]!r} and "
            f"{len(missing) - 1} more; give a model folder whose weights fit its config.json"
        )
    return model


def starts_from_scratch(hparams: HParams, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the weights are random: a `model_config`, or a model made for another vocabulary."""
    if hparams.model is None:
        return True
    try:
        own = AutoTokenizer.from_pretrained(find_local(hparams.model))
    except (OSError, ValueError):
        return False  # a model that brings no tokenizer: take the user's word
    return own.get_vocab() != tokenizer.get_vocab()


def _config_from_keys(
    keys: Dict[str, Any], tokenizer: PreTrainedTokenizerBase
) -> PretrainedConfig:
    keys = {"model_type": "albert", **_vocabulary(tokenizer), **keys}
    model_type = keys.pop("model_type")
    try:
        known = AutoConfig.for_model(model_type).to_dict()
    except ValueError:
        raise UserError(
            f"hyperparameters.model_config.model_type: {model_type!r} is no model of transformers"
        ) from None
    for key in keys:
        if key not in known:
            raise unknown_key(key, "hyperparameters.model_config", list(known))
    if keys["vocab_size"] < len(tokenizer):
        raise UserError(
            f"hyperparameters.model_config.vocab_size: {keys['vocab_size']} is less than the "
            f"tokenizer's {len(tokenizer)} pieces; leave it out"
        )
    config = AutoConfig.for_model(model_type, **keys)
    if config.hidden_size % config.num_attention_heads:
        raise UserError(
            f"hyperparameters.model_config.hidden_size: {config.hidden_size} is no multiple of "
            f"num_attention_heads {config.num_attention_heads}"
        )
    return config


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> Dict[str, Any]:
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    special = {name: getattr(tokenizer, name) for name in names}
    return {"vocab_size": len(tokenizer), **{k: v for k, v in special.items() if v is not None}}


def _from_config(config: PretrainedConfig) -> PreTrainedModel:
    try:
        return AutoModelForQuestionAnswering.from_config(
            config, attn_implementation=PACKED, dtype=torch.float32
        )
    except (ValueError, TypeError) as error:
        raise UserError(
            f"hyperparameters.model: cannot be built: {str(error).strip().splitlines()[0]}"
        ) from None
