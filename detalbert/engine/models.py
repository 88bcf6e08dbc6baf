"""Models from a hub name, folder or config, and checks of them without their weights.

Whatever a user names is loaded as data: no code of the model's, no pickles but tensors, and no
weights that are not finite. The price is that models with code of their own are refused. What is
read of the data, or written of it, may take hours; a model that cannot be trained on it is refused
before that, by its config. The price is that it is built twice, the first time without memory.
"""

import contextlib
import copy
import logging
from collections.abc import Callable, Container
from functools import partial
from pathlib import Path
from typing import Any

import psutil
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
from detalbert.engine.inputs import attention_of, follow_tokenizer, pack_or_pad, positions
from detalbert.engine.safe_load import check_finite_weights, check_sizes, read_config, read_weights
from detalbert.errors import UserError, as_user_error, first_line, unknown_key
from detalbert.hub import STATE_DICT, check_model_folder, find_local, hub_error, is_checkpoint
from detalbert.progress import waiting
from detalbert.settings.hparams import HParams, StepHParams

log = logging.getLogger(__name__)
# One of these is in every folder with a tokenizer.
TOKENIZER_FILES = """
    tokenizer.json tokenizer_config.json vocab.txt vocab.json
    spiece.model spm.model sentencepiece.bpe.model
""".split()
# Keys that a family's code reads though its config class does not list them: DeBERTa-v3's, and
# those of ModernBERT's older configs.
_UNLISTED = {
    "deberta-v2": {
        "norm_rel_ebd",
        "share_att_key",
        "position_buckets",
        "conv_kernel_size",
        "conv_act",
        "conv_groups",
    },
    "modernbert": {"global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"},
}
WEIGHTS = "*.safetensors", "*.bin", STATE_DICT  # files of a folder
Build = Callable[[PretrainedConfig], PreTrainedModel]  # on a config, with random weights
ModelClass = Any  # transformers' class of a model, or an auto class of several


def build_span_model(hparams: HParams, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Build the encoder with a span head in fp32, its random weights drawn from `seed`.

    A model with another vocabulary than the tokenizer's keeps its sizes but starts from random
    weights, because ids would mean other tokens (see `starts_from_scratch`). Raises UserError if
    the model is not found, has no weights, too few positions, or is not an encoder.
    """
    # A head without weights is random, too: so always seeded.
    torch.manual_seed(hparams.known_seed)
    config = span_config(hparams, tokenizer)
    attention = attention_of(config)
    if starts_from_scratch(hparams, tokenizer):
        model = random_model(AutoModelForQuestionAnswering, config, attention)
    else:
        model, _ = load_encoder(AutoModelForQuestionAnswering, str(hparams.model), attention)
    # What follows refuses the model, or settles how it runs: with which segments, packed or not.
    check_vocabulary(model.config, tokenizer)
    follow_tokenizer(model, tokenizer)
    pack_or_pad(model)
    hparams.check_positions(positions(model))
    return model


def span_config(hparams: HParams, tokenizer: PreTrainedTokenizerBase) -> PretrainedConfig:
    """Return the config of the model to fine-tune, for `tokenizer` if its weights are random."""
    if hparams.model is None:
        return config_from_keys(hparams.model_config or {}, tokenizer)
    config = named_config(hparams.model)
    if starts_from_scratch(hparams, tokenizer):
        config.update(_vocabulary(tokenizer, config.to_dict()))
    return config


def load_encoder(
    model_class: ModelClass, name: str, attention: str | None, num_labels: int | None = None
) -> tuple[PreTrainedModel, set[str]]:
    """Load an encoder with its weights, and a head of `model_class`, which they may lack. Return
    the model, and the names of parameters without weights. Raises UserError if the encoder's
    weights are not complete; the rest is as of `load_weights`.
    """
    with as_user_error(partial(model_error, name)):
        model, missing = load_weights(model_class, name, attention, num_labels)
    encoder = f"{model.base_model_prefix}."
    lacking = {parameter for parameter in missing if parameter.startswith(encoder)}
    if lacking:
        raise UserError(
            f"{name!r}: its weights lack {min(lacking)!r} and {len(lacking) - 1} more",
            key="hyperparameters.model",
            cure="give another",
        )
    return model, missing


def check_vocabulary(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise UserError if the model has fewer tokens than the tokenizer."""
    tokens = getattr(config, "vocab_size", len(tokenizer))
    if len(tokenizer) > tokens:
        raise UserError(
            f"it has {tokens} tokens, and the tokenizer {len(tokenizer)} pieces",
            key="hyperparameters.model",
            cure="give its own, or leave model_config.vocab_size out",
        )


def load_weights(
    model_class: ModelClass,
    name: str,
    attention: str | None = PACKED,
    num_labels: int | None = None,
    **options: object,
) -> tuple[PreTrainedModel, set[str]]:
    """Load a folder, a hub name or a checkpoint of this package, whatever its head was.

    Args:
        model_class: has transformers' `from_pretrained` and `from_config`.
        name: of the folder, hub model or checkpoint.
        attention: of AttentionInterface; None: the library's choice.
        num_labels: outputs of the head; None: as many as its config says.
        options: for `from_pretrained`.

    Returns:
        The model, and the names of parameters without weights.

    Raises:
        UserError: the model holds or names code, or a weight is not finite.
        Exception: whatever transformers raises.
    """
    with waiting(f"loading the weights of {name}"):
        config = hub.load_named(read_config, name)
        if num_labels is not None:
            config.num_labels = num_labels
        if is_checkpoint(name):
            model = random_model(model_class, config, attention=attention, name=name)
            missing = _load_checkpoint(model, Path(name))
        else:
            # Before the library opens a file, or makes a tensor.
            check_model_folder(Path(find_local(name)))
            check_fits(build_empty(_builder(model_class, attention, config), config), name)
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
            missing = set(info["missing_keys"])
        check_finite_weights(name, model.named_parameters())
    return model, missing


def _load_checkpoint(model: PreTrainedModel, folder: Path) -> set[str]:
    """Load a checkpoint's weights, where the model has such; return the names without weights."""
    wanted = model.state_dict()
    weights = read_weights(folder / STATE_DICT)
    # A head of another task has no place in this model.
    weights = {name: weight for name, weight in weights.items() if name in wanted}
    model.load_state_dict(weights, strict=False)
    # A tied parameter has two names, and its weights may be there under either.
    loaded = {wanted[name].data_ptr() for name in weights}
    return {name for name, weight in wanted.items() if weight.data_ptr() not in loaded}


def named_config(name: str) -> PretrainedConfig:
    """Return the config of a folder or hub name. Raises UserError if it does not load."""
    with as_user_error(partial(model_error, name)):
        config = hub.load_named(read_config, name)
    return config


def model_error(name: str, error: BaseException) -> UserError:
    """Return the error for a model that transformers cannot load."""
    kind = hub_error(error)
    return kind(
        f"{name!r} does not load: {first_line(error)}",
        key="hyperparameters.model",
        cure="give another",
    )


def starts_from_scratch(hparams: StepHParams, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether weights are random: a `model_config`, or a model of another vocabulary."""
    if hparams.model is None:
        return True
    # Tokens are the same if the model's own tokenizer has the same vocabulary.
    folder = Path(find_local(hparams.model))
    check_model_folder(folder)
    if lacks_tokenizer(folder):
        return False  # take the user's word
    with contextlib.suppress(UserError), hub.hub_errors("no tokenizer", key=hparams.model):
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
    model_type = keys.get("model_type", "albert")
    try:
        defaults = AutoConfig.for_model(model_type).to_dict()
    except (ValueError, TypeError):
        raise UserError(
            f"{model_type!r:.40} is no model of transformers",
            key="hyperparameters.model_config.model_type",
            cure="use one of its model types",
        ) from None
    if {"layer_types", "global_attn_every_n_layers"} <= keys.keys():
        raise UserError(
            "layer_types says it, too",
            key="hyperparameters.model_config.global_attn_every_n_layers",
            cure="leave one out",
        )
    # The library takes any key, also one that no model reads.
    for key in keys:
        if key not in defaults and key not in _UNLISTED.get(model_type, ()):
            raise unknown_key(key, "hyperparameters.model_config", known=defaults)
    check_sizes(keys, key="hyperparameters.model_config")
    # The user's keys win over the tokenizer's.
    keys = {**_vocabulary(tokenizer, defaults), **keys, "model_type": model_type}
    with as_user_error(not_built):
        config = AutoConfig.for_model(**keys)
    check_heads(config)
    return config


def check_heads(config: PretrainedConfig) -> None:
    """Raise UserError unless the hidden size, the heads for each key-value head, and the numbers of
    a head that rotary positions turn in pairs, divide.
    """
    heads = getattr(config, "num_attention_heads", None) or 1
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    turned = head_dim if getattr(config, "rope_parameters", None) else 0
    for name, size, divisor in (
        ("hidden_size", config.hidden_size, heads),
        ("num_attention_heads", heads, kv_heads),
        ("head_dim", turned, 2),
    ):
        if size % divisor:
            raise UserError(
                f"{size} is no multiple of {divisor}",
                key=f"hyperparameters.model_config.{name}",
                cure="use a multiple",
            )


def check_fits(model: PreTrainedModel, name: str | None = None, ranks: int = 1) -> None:
    """Raise UserError if a model is larger than what it is read from, or than this machine.

    Args:
        model: without memory, see `build_empty`.
        name: of the folder with its weights; None, or a name of the hub: not compared.
        ranks: of this machine that share the model.
    """
    memory = psutil.virtual_memory().total + psutil.swap_memory().total
    if 4 * model.num_parameters() > memory * ranks:
        raise UserError(
            f"its weights are larger than this machine's {memory / 1e9:,.0f} GB of memory",
            key="hyperparameters.model",
            cure="give a smaller one",
        )
    if name is None:
        return
    # A number takes a byte, at least. Weights of a head may be missing.
    sizes = [path.stat().st_size for ending in WEIGHTS for path in Path(name).glob(ending)]
    if sizes and model.base_model.num_parameters() > sum(sizes):
        raise UserError(
            f"its config.json is of a larger model than its weights ({sum(sizes):,} bytes)",
            key=name,
            cure="restore it",
        )


def build_empty(build: Build, config: PretrainedConfig) -> PreTrainedModel:
    """Return the model that `build` returns for `config`, without memory, on the meta device."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return build(copy.deepcopy(config))


def _vocabulary(tokenizer: PreTrainedTokenizerBase, config: Container[str]) -> dict[str, int]:
    """Return those of a model config's keys that a tokenizer determines."""
    keys = {"vocab_size": len(tokenizer)}
    for token in ("pad", "bos", "eos", "cls", "sep"):
        name = f"{token}_token_id"
        token_id = getattr(tokenizer, name, None)
        if token_id is not None and name in config:
            keys[name] = token_id
    return keys


def random_model(
    model_class: ModelClass,
    config: PretrainedConfig,
    attention: str | None = PACKED,
    name: str | None = None,
) -> PreTrainedModel:
    """Return a model of `config` with random weights, in which those of `name` are to be read.
    Raises UserError if it cannot be built, or `check_fits` refuses it.
    """
    build = _builder(model_class, attention, config)
    with as_user_error(not_built):
        check_fits(build_empty(build, config), name)
        return build(config)


def _builder(model_class: ModelClass, attention: str | None, config: PretrainedConfig) -> Build:
    """Return the function that builds a model from a config: public of an auto class alone."""
    if hasattr(model_class, "_model_mapping"):
        # Import the model's module now: on the meta device torch 2.6 cannot.
        model_class._model_mapping.get(type(config), None)
    build = getattr(model_class, "from_config", None) or model_class._from_config
    return partial(build, attn_implementation=attention, dtype=torch.float32)


def not_built(error: BaseException) -> UserError:
    """Return the error for a config from which transformers cannot build a model."""
    return UserError(f"cannot be built: {first_line(error)}", key="hyperparameters.model")


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
        with as_user_error(not_built):
            model = build_empty(model_class, config)
        hparams.check_positions(positions(model))
