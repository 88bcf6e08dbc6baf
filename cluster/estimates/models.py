"""The model that an experiment trains, as far as its config determines it; no download."""

import contextlib
import functools
import json
from pathlib import Path
from typing import Any, NamedTuple, cast

from transformers import AlbertForPreTraining, AutoConfig, PretrainedConfig

from detalbert.engine import safe_load
from detalbert.engine.memory import KEPT, Sizes
from detalbert.engine.models import config_from_keys, encoder_sizes
from detalbert.hub import split_revision
from detalbert.settings.hparams import StepHParams
from detalbert.settings.schema import at
from lm.hparams import LmHParams
from lm.model import causal_config, causal_sizes
from pretrain.hparams import SIZE_KEYS, SIZES, PretrainHParams

_ALBERT: dict[str, Any] = {"model_type": "albert", "vocab_size": 30000}
_ALBERT |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
KNOWN_CONFIGS = {
    f"albert-{size}-v2": _ALBERT | dict(zip(SIZE_KEYS, shape, strict=True))
    for size, shape in SIZES.items()
    if size != "tiny"
}


class Model(NamedTuple):
    """A transformers config and the sizes that determine its memory."""

    config: PretrainedConfig
    sizes: Sizes


def find_model(config: dict[str, Any], hparams: StepHParams, root: Path) -> Model | None:
    """Return the experiment's model: `model` is an `albert-*-v2` hub name or a folder under `root`.

    None for any other hub name, and for a family whose layers are not known (memory.KEPT). Raises
    UserError for keys of which no model can be built, and if its sizes do not fit the windows.
    """
    if hparams.model is not None and (root / hparams.model / "config.json").is_file():
        found: Any = safe_load.read_config(root / hparams.model)
    elif isinstance(hparams, LmHParams):
        found = _language(config, hparams)
    else:
        found = _encoder(hparams)
    if found is None:
        return None
    kind: Any = type(hparams)
    sizes = _sizes(kind, found.__class__, found.to_json_string(use_diff=False))
    return Model(found, sizes) if sizes is not None and sizes.family in KEPT else None


@functools.lru_cache(maxsize=64)
def _sizes(kind: Any, config_class: Any, text: str) -> Sizes | None:
    config = config_class.from_dict(json.loads(text))
    if kind is LmHParams:
        return causal_sizes(config)
    return encoder_sizes(config, AlbertForPreTraining if kind is PretrainHParams else None)


def _encoder(hparams: StepHParams) -> PretrainedConfig | None:
    if hparams.model is None:
        keys = hparams.model_config or {}
        if isinstance(hparams, PretrainHParams):
            keys = hparams.model_keys()
        if any(isinstance(value, dict) and "type" in value for value in keys.values()):
            return None  # a search over sizes: the model of no trial is known
        return config_from_keys(keys, cast(Any, range(_ALBERT["vocab_size"])))
    keys = KNOWN_CONFIGS.get(split_revision(hparams.model)[0].split("/")[-1], {})
    return AutoConfig.for_model(**keys) if keys else None


def _language(config: dict[str, Any], hparams: LmHParams) -> PretrainedConfig | None:
    pieces = at(config, "data.vocab_size") or (hparams.model_config or {}).get("vocab_size")
    if hparams.model is None and isinstance(pieces, int):  # else a hub's tokenizer says how many
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return causal_config(hparams, cast(Any, range(pieces)))
    return None
