"""Demands of a job on each GPU, for cluster.plan and cluster.check: no weights are made.

Each `Workload` has a `Sizing`. Its sizes are those of the model that it would build, counted
without memory; nothing is downloaded. So a plan takes seconds, at the price that a model which only
the hub knows has no estimate.
"""

import contextlib
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

from transformers import AutoConfig, PretrainedConfig

from detalbert.engine import safe_load
from detalbert.engine.flops import encoder_flops_per_token
from detalbert.engine.memory import KEPT, Memory, Sizes, replicated
from detalbert.engine.models import config_from_keys, encoder_sizes
from detalbert.hub import split_revision
from detalbert.settings.hparams import HParams, StepHParams
from detalbert.settings.values import Config
from detalbert.settings.yaml_files import read_yaml

HParamsT = TypeVar("HParamsT", bound=StepHParams)
VOCABULARY = 30_000  # of the published ALBERT models
# The configs of published models by their names without owner.
SHIPPED = read_yaml(Path(__file__).with_name("shipped_models.yaml"))
# Tokens of SQuAD, by ALBERT's tokenizer: of a window of 384 that shares 128, of a question in the
# mean and of a long one, and of a context, the middles of 40 equal parts of all questions. They are
# those of 18 articles (7,547 questions) of train-v2.0.json and dev-v2.0.json.
WINDOW = 174.4
QUESTION = 12
LONG_QUESTION = 36
SPECIAL = 3  # around question and context
CONTEXTS = (
    *(45, 62, 70, 80, 85, 91, 95, 100, 104, 109, 112, 116, 119, 122, 125, 128, 133, 136, 139, 145),
    *(149, 152, 157, 162, 169, 172, 179, 185, 190, 197, 205, 213, 218, 229, 237, 252, 266, 289),
    *(318, 384),
)


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


def squad_windows(max_seq_length: int, doc_stride: int) -> tuple[float, float]:
    """Return windows per question and tokens per window of SQuAD, beside those of 384 tokens that
    share 128; (inf, 1) if a window cannot begin later than the one before.
    """
    counts = []
    for length, stride in ((max_seq_length, doc_stride), (384, 128)):
        room = length - SPECIAL - QUESTION  # for context
        step = room - stride
        if step <= 0:
            return math.inf, 1.0
        # As `cover` of squad/cutting.py: later windows repeat `stride` tokens of the context.
        later_windows = [max(0, -((room - context) // step)) for context in CONTEXTS]
        windows = len(CONTEXTS) + sum(later_windows)
        tokens = sum(CONTEXTS) + sum(later_windows) * stride + windows * (SPECIAL + QUESTION)
        counts.append((windows, tokens / windows))
    (windows, length_of_window), (usual_windows, usual_length) = counts
    return windows / usual_windows, length_of_window / usual_length


def no_changes(hparams: StepHParams, slots: Slots) -> Iterator[Config]:
    """Yield nothing: a replicated model has one layout."""
    yield from ()


def no_tokenizer(data: Config) -> None:
    """Check nothing: the workload takes every tokenizer."""


@dataclass(frozen=True)
class Sizing(Generic[HParamsT]):
    """Sizes of a workload's models, and what they need.

    Args:
        find_config: returns transformers' config of an experiment's model, from the experiment's
            config; None if it is not known without a download.
        count_sizes: returns the sizes of the model of such a config.
        demand: raises UserError if the layout does not fit the slots, the machines or the model.
        layouts: yields hyperparameters to try instead.
        check_tokenizer: raises UserError if the tokenizer of a `data:` section, a folder, lacks
            what the workload needs.
    """

    find_config: Callable[[Mapping[str, Any], HParamsT], PretrainedConfig | None]
    count_sizes: Callable[[PretrainedConfig], Sizes | None]
    demand: Callable[[Model, HParamsT, Slots], Demand]
    layouts: Callable[[HParamsT, Slots], Iterator[Config]] = no_changes
    check_tokenizer: Callable[[Config], None] = no_tokenizer


def find_model(
    sizing: Sizing[HParamsT], config: Mapping[str, Any], hparams: HParamsT, root: Path
) -> Model | None:
    """Return an experiment's model; None if its sizes are not known without a download, or its
    family's memory is not (memory.KEPT).

    Args:
        sizing: of its workload.
        config: of the experiment.
        hparams: of the experiment, parsed.
        root: parent folder of relative model folders.

    Raises:
        UserError: for keys of which no model can be built.
    """
    model_config: PretrainedConfig | None
    if hparams.model is not None and (root / hparams.model / "config.json").is_file():
        model_config = safe_load.read_config(root / hparams.model)
    else:
        model_config = sizing.find_config(config, hparams)
    if model_config is None:
        return None
    sizes = _count_once(
        sizing.count_sizes,
        config_class=model_config.__class__,
        text=model_config.to_json_string(use_diff=False),
    )
    if sizes is None or sizes.family not in KEPT:
        return None
    return Model(model_config, sizes)


@functools.lru_cache(maxsize=64)
def _count_once(
    count_sizes: Callable[[PretrainedConfig], Sizes | None],
    config_class: type[PretrainedConfig],
    text: str,
) -> Sizes | None:
    """Return the sizes of a model, given its config as a text, which is hashable: a plan asks many
    times for a few models.
    """
    return count_sizes(config_class.from_dict(json.loads(text)))


def encoder_config(name: str | None, keys: Mapping[str, Any]) -> PretrainedConfig | None:
    """Return the config of an encoder; None for a search over sizes, and for a hub name that no
    shipped config has.

    Args:
        name: `hyperparameters.model`.
        keys: of the model's config, if it has no name.
    """
    if name is not None:
        repository, _ = split_revision(name)
        shipped = SHIPPED.get(repository.split("/")[-1])
        return None if shipped is None else AutoConfig.for_model(**shipped)
    is_searched = any(isinstance(value, dict) and "type" in value for value in keys.values())
    if is_searched:
        return None
    # Of a tokenizer only the length counts: that of the family's own.
    vocabulary = VOCABULARY
    with contextlib.suppress(ValueError):  # an unknown family, which is refused below
        family = AutoConfig.for_model(keys.get("model_type", "albert"))
        vocabulary = getattr(family, "vocab_size", VOCABULARY)
    tokenizer = cast(Any, range(vocabulary))
    return config_from_keys(dict(keys), tokenizer=tokenizer)


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
        # Without a flash kernel all pairs of tokens have a score in memory.
        grid=not (slots.has_bf16 and half),
        longest=hparams.max_seq_length,
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
    window = float(hparams.max_seq_length)
    if slots.has_bf16:
        # A workload of one's own may have no stride.
        doc_stride = getattr(hparams, "doc_stride", HParams.doc_stride)
        _, tokens = squad_windows(hparams.max_seq_length, doc_stride)
        window = min(window, WINDOW * tokens)
    return encoder_demand(
        model,
        hparams,
        slots,
        task="fine-tuning",
        window=window,
    )


ENCODER_SIZING = Sizing[StepHParams](
    find_config=_fine_tuning_config,
    count_sizes=encoder_sizes,
    demand=_fine_tuning_demand,
)
