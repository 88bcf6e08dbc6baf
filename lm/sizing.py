"""Demands of a language model on each GPU, and the layouts that its slots allow."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import cast

from transformers import PretrainedConfig, PreTrainedTokenizerBase

from detalbert.engine.flops import causal_flops_per_token
from detalbert.settings.text import parse_documents_config
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.training.sizing import Demand, Model, Sizing, Slots
from lm.corpus import load_tokenizer
from lm.hparams import Layout, LmHParams
from lm.layout import choose_layout, split_memory
from lm.model import causal_config, causal_sizes

RECOMPUTED = ("none", 0.5, "full")  # choices of activation_checkpointing that are tried


def _find_config(config: Mapping[str, object], hparams: LmHParams) -> PretrainedConfig | None:
    """Return the model's config, or None if it takes a tokenizer that is not here."""
    model_config = hparams.model_config or {}
    data = cast(Mapping[str, object], config.get("data") or {})
    vocabulary = data.get("vocab_size") or model_config.get("vocab_size")
    # The tokenizer of a hub's model says how many; it is not downloaded.
    if hparams.model is None and isinstance(vocabulary, int):
        # A range stands for a tokenizer that is not trained yet.
        tokenizer = cast(PreTrainedTokenizerBase, range(vocabulary))
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return causal_config(hparams, tokenizer)
    return None


def _demand(model: Model, hparams: LmHParams, slots: Slots) -> Demand:
    layout = choose_layout(
        hparams.layout, model.config, slots=slots.number, slots_per_machine=slots.per_machine
    )
    # Without bf16 there is no flash kernel: attention runs on a padded grid.
    grid = not (slots.has_bf16 and hparams.precision != "fp32")
    return Demand(
        task="language",
        memory=split_memory(model.sizes, layout, hparams, grid),
        flops=causal_flops_per_token(model.config, hparams.max_seq_length),
        window=float(hparams.max_seq_length),
        data_ranks=layout.data_ranks,
        recomputed=hparams.recomputed,
        layout=dataclasses.asdict(layout),
    )


def _layouts(hparams: LmHParams, slots: Slots) -> Iterator[dict[str, object]]:
    """Yield the hyperparameters of all layouts of whole machines, with each of RECOMPUTED."""
    divisors = [number for number in range(1, slots.number + 1) if slots.number % number == 0]
    for tensor in divisors:
        data_ranks = slots.number // tensor
        for shard in divisors:
            if tensor > slots.per_machine or data_ranks % shard:
                continue
            layout = Layout(replicate=data_ranks // shard, shard=shard, tensor=tensor)
            for share in RECOMPUTED:
                yield {
                    "layout": dataclasses.asdict(layout),
                    "activation_checkpointing": share,
                }


def _check_tokenizer(data: dict[str, object]) -> None:
    load_tokenizer(parse_documents_config(data), named_tokenizer)


SIZING = Sizing(
    find_config=_find_config,
    count_sizes=causal_sizes,
    demand=_demand,
    layouts=_layouts,
    check_tokenizer=_check_tokenizer,
)
