"""Demands of a job on each GPU, for cluster.plan and cluster.check: no weights are made.

Each `Workload` has a `Sizing`. Its sizes are those of the model that it would build, counted
without memory; nothing is downloaded.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from transformers import AutoConfig, PretrainedConfig

from detalbert.engine import safe_load
from detalbert.engine.flops import encoder_flops_per_token
from detalbert.engine.memory import KEPT, Memory, Sizes, replicated
from detalbert.engine.models import config_from_keys, encoder_sizes
from detalbert.hub import split_revision
from detalbert.settings.albert import VOCABULARY, published_configs
from detalbert.settings.hparams import StepHParams
from detalbert.settings.values import Config

REAL = 174.4 / 384  # of a window of SQuAD: tokens that are no padding


class Model(NamedTuple):
    """A transformers config and the sizes that determine its memory."""

    config: PretrainedConfig
    sizes: Sizes


class Slots(NamedTuple):
    """The GPUs of a job."""

    number: int
    per_machine: int
    has_bf16: bool  # and with it a flash kernel


class Demand(NamedTuple):
    """Demands of a job on each of its GPUs."""

    task: str  # of cluster/facts/speeds.yaml
    memory: Memory
    flops: float  # per token, recomputation left out
    window: float  # tokens of a window that are computed
    data_ranks: int  # that share a global batch
    recomputed: float = 0.0  # share of the layers that run again in the backward pass
    # Of a sharded model: `replicate`, `shard` and `tensor`, as `hyperparameters.layout` has them.
    layout: Mapping[str, int] = {}


def no_changes(hparams: Any, slots: Slots) -> Iterator[dict[str, Any]]:
    """Yield nothing: a replicated model has one layout."""
    yield from ()


def no_tokenizer(data: Config) -> None:
    """Check nothing: the workload takes every tokenizer."""


class Sizing(NamedTuple):
    """Sizes of a workload's models, and what they need.

    `demand` raises UserError if the layout does not fit the slots, the machines or the model;
    `check_tokenizer` if the tokenizer of a `data:` section, a folder, lacks what the workload
    needs.
    """

    find_config: Callable[[Mapping[str, Any], Any], PretrainedConfig | None]  # (config, hparams)
    count_sizes: Callable[[PretrainedConfig], Sizes | None]
    demand: Callable[[Model, Any, Slots], Demand]
    layouts: Callable[[Any, Slots], Iterator[dict[str, Any]]] = no_changes  # keys to try instead
    check_tokenizer: Callable[[dict[str, Any]], None] = no_tokenizer


def find_model(
    sizing: Sizing, config: Mapping[str, Any], hparams: StepHParams, root: Path
) -> Model | None:
    """Return an experiment's model; None if its sizes are not known without a download, or its
    family's memory is not (memory.KEPT).

    Args:
        root: parent folder of relative model folders.

    Raises:
        UserError: for keys of which no model can be built.
    """
    if hparams.model is not None and (root / hparams.model / "config.json").is_file():
        model_config: Any = safe_load.read_config(root / hparams.model)
    else:
        model_config = sizing.find_config(config, hparams)
    if model_config is None:
        return None
    text = model_config.to_json_string(use_diff=False)
    sizes = _count(sizing.count_sizes, model_config.__class__, text)
    if sizes is None or sizes.family not in KEPT:
        return None
    return Model(model_config, sizes)


@functools.lru_cache(maxsize=64)
def _count(
    count_sizes: Callable[[Any], Sizes | None], config_class: Any, text: str
) -> Sizes | None:
    return count_sizes(config_class.from_dict(json.loads(text)))


def encoder_config(name: str | None, keys: Mapping[str, Any]) -> PretrainedConfig | None:
    """Return the config of an encoder; None for a search over sizes, and for a hub name that is
    none of ALBERT's.

    Args:
        name: `hyperparameters.model`.
        keys: of the model's config, if it has no name.
    """
    if name is not None:
        published = published_configs().get(split_revision(name)[0].split("/")[-1])
        return None if published is None else AutoConfig.for_model(**published)
    if any(isinstance(value, dict) and "type" in value for value in keys.values()):
        return None
    return config_from_keys(dict(keys), cast(Any, range(VOCABULARY)))


def encoder_demand(
    model: Model, hparams: StepHParams, slots: Slots, task: str, window: float, masked: float = 0.0
) -> Demand:
    """Return what an encoder needs that is replicated on all slots.

    Args:
        window: tokens of a window that are computed.
        masked: share of the tokens that have a vocabulary head.
    """
    half = hparams.precision != "fp32"
    memory = replicated(
        model.sizes,
        slots=slots.number,
        half=half,
        grid=not (slots.has_bf16 and half),
        masked=masked,
    )
    return Demand(
        task=task,
        memory=memory,
        flops=encoder_flops_per_token(model.config, window, masked),
        window=window,
        data_ranks=slots.number,
    )


def _fine_tuning_config(config: Mapping[str, Any], hparams: StepHParams) -> PretrainedConfig | None:
    return encoder_config(hparams.model, hparams.model_config or {})


def _fine_tuning_demand(model: Model, hparams: StepHParams, slots: Slots) -> Demand:
    # Published runs on GPUs without bf16 were padded: their rates are of all tokens.
    share = REAL if slots.has_bf16 else 1.0
    window = hparams.max_seq_length * share
    return encoder_demand(model, hparams, slots, task="fine-tuning", window=window)


ENCODER_SIZING = Sizing(
    find_config=_fine_tuning_config,
    count_sizes=encoder_sizes,
    demand=_fine_tuning_demand,
)
