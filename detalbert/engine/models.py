"""Models from a hub name, folder or config, and their sizes without weights."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert import hub
from detalbert.engine.attention import PACKED
from detalbert.engine.finite import check_finite_weights
from detalbert.engine.memory import Sizes
from detalbert.engine.model_memory import check_fits, counted_parameters
from detalbert.engine.padded import attention_of, pack_or_pad, positions
from detalbert.engine.safe_load import read_config, read_weights
from detalbert.engine.segments import follow_tokenizer
from detalbert.errors import (
    UnknownKey,
    UserError,
    all_lines,
    as_user_error,
    first_line,
    panics_raised,
)
from detalbert.hub import STATE_DICT, find_local, hub_error, is_checkpoint
from detalbert.integrity import check_model_folder
from detalbert.settings.hparams import HParams
from detalbert.waiting import reading, waiting

# One of these is in every folder with a tokenizer.
TOKENIZER_FILES = "tokenizer.json tokenizer_config.json vocab.txt vocab.json".split()
TOKENIZER_FILES += "spiece.model spm.model sentencepiece.bpe.model".split()
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


def build_span_model(hparams: HParams, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Build the encoder with a span head in fp32, its random weights drawn from `seed`.

    A model with another vocabulary than the tokenizer's keeps its sizes but starts from random
    weights, because ids would mean other tokens (see `starts_from_scratch`). Raises UserError if
    the model is not found, has no weights, too few positions, or is not an encoder.
    """
    torch.manual_seed(hparams.known_seed)
    if starts_from_scratch(hparams, tokenizer):
        if hparams.model is None:
            config = config_from_keys(hparams.model_config or {}, tokenizer)
        else:
            config = named_config(hparams.model)
            config.update(_vocabulary(tokenizer))
        model = random_model(AutoModelForQuestionAnswering, config, attention_of(config))
    else:
        name = str(hparams.model)
        with as_user_error(partial(model_error, name)):
            attention = attention_of(hub.load_named(read_config, name))
            model, missing = load_weights(AutoModelForQuestionAnswering, name, attention)
        encoder = f"{model.base_model_prefix}."  # the rest is the head, which a pretraining lacks
        missing = {name for name in missing if name.startswith(encoder)}
        if missing:
            said = f"its weights lack {min(missing)!r} and {len(missing) - 1} more; give another"
            raise UserError(f"hyperparameters.model: {hparams.model!r}: {said}")
    check_vocabulary(model.config, tokenizer)
    follow_tokenizer(model, tokenizer)
    pack_or_pad(model)
    hparams.check_positions(positions(model))
    return model


def check_vocabulary(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError if the model has fewer tokens than the tokenizer."""
    tokens = getattr(config, "vocab_size", len(tokenizer))
    if len(tokenizer) > tokens:
        said = f"it has {tokens} tokens, and the tokenizer {len(tokenizer)} pieces; give its own"
        raise UserError(f"hyperparameters.model: {said}, or leave model_config.vocab_size out")


def load_weights(
    model_class: Any, name: str, attention: str | None = PACKED, **options: Any
) -> tuple[Any, set]:
    """Load a folder, a hub name or a checkpoint of this package, whatever its head was.

    Returns the model and the names of parameters without weights. `model_class` has transformers'
    `from_pretrained`, which gets `options`, and `from_config`. Raises UserError if the model holds
    or names code, or a weight is not finite, and whatever transformers raises.
    """
    said, folder = f"loading the weights of {name}", Path(name)
    with reading(said, folder.glob("*")) if folder.is_dir() else waiting(said):
        config = hub.load_named(read_config, name)
        if not is_checkpoint(name):
            check_model_folder(Path(find_local(name)))
            check_fits(model_class, _builder(model_class, attention), config)
            model, info = hub.load_named(
                model_class.from_pretrained,
                name,
                config=config,
                attn_implementation=attention,
                dtype=torch.float32,
                trust_remote_code=False,
                output_loading_info=True,
                **options,
            )
            check_finite_weights(name, model.named_parameters())
            return model, set(info["missing_keys"])
        model = random_model(model_class, config, attention)
        weights = read_weights(Path(name) / STATE_DICT)
        wanted = model.state_dict()
        weights = {key: value for key, value in weights.items() if key in wanted}
        model.load_state_dict(weights, strict=False)
        check_finite_weights(name, model.named_parameters())
        # A tied parameter has two names, and its weights may be there under either.
        found = {wanted[key].data_ptr() for key in weights}
        return model, {key for key in wanted if wanted[key].data_ptr() not in found}


def named_config(name: str) -> PretrainedConfig:
    """Return the config of a folder or hub name. Raises UserError if it does not load."""
    with as_user_error(partial(model_error, name)):
        config = hub.load_named(read_config, name)
    return config


def model_error(name: str, error: BaseException) -> UserError:
    """Return the error for a model that transformers cannot load."""
    text = f"hyperparameters.model: {name!r} does not load: {first_line(error)}; give another"
    return hub_error(error)(text)


def starts_from_scratch(hparams: HParams, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether weights are random: a `model_config`, or a model of another vocabulary."""
    if hparams.model is None:
        return True
    folder = Path(find_local(hparams.model))
    check_model_folder(folder, small=True)
    if lacks_tokenizer(folder):
        return False  # take the user's word
    with contextlib.suppress(Exception), panics_raised():  # of tokenizers a bare one
        own = hub.load_named(AutoTokenizer.from_pretrained, hparams.model, trust_remote_code=False)
        return own.get_vocab() != tokenizer.get_vocab()
    return False


def lacks_tokenizer(folder: Path) -> bool:
    """Return whether a model folder has no tokenizer; the library would make one up."""
    return folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES)


def config_from_keys(keys: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """Return a config of `model_type` (default: albert) with `keys`, for `tokenizer`. Raises
    UserError if the model does not have a key, or sizes do not fit.
    """
    keys = {"model_type": "albert", **_vocabulary(tokenizer), **keys}
    model_type = keys.pop("model_type")
    try:
        known = AutoConfig.for_model(model_type).to_dict()
    except ValueError:
        said = f"{model_type!r} is no model of transformers; use one of its model types"
        raise UserError(f"hyperparameters.model_config.model_type: {said}") from None
    for key in keys:
        if key not in known:
            raise UnknownKey(key, "hyperparameters.model_config", known)
    with as_user_error(not_built):
        config = AutoConfig.for_model(model_type, **keys)
        check_heads(config)
    if config.hidden_size % (getattr(config, "num_attention_heads", None) or 1):
        said = f"{config.hidden_size} is no multiple of num_attention_heads"
        cure = f"use a multiple of {config.num_attention_heads}"
        raise UserError(f"hyperparameters.model_config.hidden_size: {said}; {cure}")
    return config


def check_heads(config: PretrainedConfig) -> None:
    """Raise UserError unless each key-value head has the same number of attention heads."""
    heads = getattr(config, "num_attention_heads", None)
    shared = getattr(config, "num_key_value_heads", None)
    if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
        raise UserError(
            f"hyperparameters.model_config.num_key_value_heads: {shared} does not divide "
            f"num_attention_heads {heads}; use a divisor of it"
        )


def _vocabulary(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    special = {name: getattr(tokenizer, name, None) for name in names}
    return {"vocab_size": len(tokenizer), **{k: v for k, v in special.items() if v is not None}}


def random_model(model_class: Any, config: PretrainedConfig, attention: str | None = PACKED) -> Any:
    """Return a model of `config` with random weights. Raises UserError if it cannot be built."""
    make = _builder(model_class, attention)
    with as_user_error(not_built):
        check_heads(config)
        check_fits(model_class, make, config)
        return make(config)


def _builder(model_class: Any, attention: str | None) -> Callable[[PretrainedConfig], Any]:
    """Return the function that builds a model from a config: public of an auto class alone."""
    make = getattr(model_class, "from_config", None) or model_class._from_config
    return partial(make, attn_implementation=attention, dtype=torch.float32)


def not_built(error: BaseException) -> UserError:
    """Return the error for a config from which transformers cannot build a model."""
    return UserError(f"hyperparameters.model: cannot be built: {all_lines(error)}")


def span_model_sizes(hparams: HParams) -> Sizes | None:
    """Return the sizes of the model to fine-tune; None if its config builds no model.
    `build_span_model` reports such configs. Raises UserError if model or weights are missing.
    """
    if hparams.model is None:
        keys = {"model_type": "albert", **(hparams.model_config or {})}
        with contextlib.suppress(Exception):  # transformers' own of invalid keys is a bare one
            return encoder_sizes(AutoConfig.for_model(keys.pop("model_type"), **keys))
        return None
    check_weights(hparams.model, *WEIGHT_FILES)
    return encoder_sizes(named_config(hparams.model))


def check_weights(name: str, *files: str) -> None:
    """Raise UserError if `name` is a folder with none of these files, and not a checkpoint."""
    path = Path(find_local(name))
    if path.is_dir() and not is_checkpoint(name) and not any(any(path.glob(f)) for f in files):
        said = f"{name!r} has no weights in this container; .detignore may have kept them out"
        raise UserError(f"hyperparameters.model: {said}")


def encoder_sizes(config: PretrainedConfig, model_class: Any = None) -> Sizes | None:
    """Return the sizes of `config`'s model of `model_class`; default: the one with a span head, or
    None if transformers has none.
    """
    # Before the meta device: under it transformers cannot import the module with torch 2.6.
    model_class = model_class or MODEL_FOR_QUESTION_ANSWERING_MAPPING.get(type(config), None)
    if model_class is None:
        return None
    with as_user_error(not_built), counted_parameters(), torch.device("meta"):
        model = model_class(config)
    return Sizes.of(config, sum(parameter.numel() for parameter in model.parameters()))
