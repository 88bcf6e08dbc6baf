"""How a model of transformers runs a row: packed or padded, with segments or without.

Encoders that packed rows do not fit run padded: the library's own attention on windows of like
lengths. Which way a model runs is found by running it on two short windows. A list of model types
would be shorter, and silently wrong for the next one.

A tokenizer says which tokens are the question's and which the context's by listing token_type_ids
among its `model_input_names`: transformers' own call for a pair of texts leaves them out otherwise,
and all tokens are then of the first segment. That call is followed, so that an answer is the
library's. But transformers 5 has dropped the entry from classes whose models were trained with both
segments by transformers 4; for them, and for ALBERT with any tokenizer, the segments stay.
"""

import contextlib
import inspect
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from detalbert.engine.attention import PACKED, RowBounds
from detalbert.engine.rows import ReadLogits, Row, convert_row, dummy_row
from detalbert.engine.safe_load import is_usable
from detalbert.errors import UserError, first_line
from detalbert.squad.encoding import tokenizing

log = logging.getLogger(__name__)
# transformers 4 had no list for these classes: its default names token_type_ids.
_DROPPED = {"AlbertTokenizer", "FunnelTokenizer", "RemBertTokenizer", "RoFormerTokenizer"}
_DROPPED |= {"SplinterTokenizer", "XLNetTokenizer"}


def attention_of(
    config: PretrainedConfig, classes: Mapping[Any, Any] = MODEL_FOR_QUESTION_ANSWERING_MAPPING
) -> str | None:
    """Return the attention to load a model with: PACKED if its code takes one from outside, else
    None, the library's choice. `classes` are transformers' models for a task, by their configs.
    """
    model_class = classes.get(type(config), None)
    return PACKED if getattr(model_class, "_supports_attention_backend", False) else None


def is_padded(model: PreTrainedModel) -> bool:
    """Return whether a model runs windows padded, not packed."""
    return model.config._attn_implementation != PACKED


def read_spans(model: PreTrainedModel, row: Row, tokens: int | None = None) -> tuple[Tensor, ...]:
    """Return start and end logits [tokens] of a row, packed or padded as `model` runs; default:
    all tokens. `model` is any question-answering model.
    """
    if is_padded(model):
        inputs, bounds = padded_inputs(model, row)
        output = model(**inputs)
        # From [n, L] back to the row's tokens.
        start_logits = output.start_logits.reshape(-1)[bounds.cell]
        end_logits = output.end_logits.reshape(-1)[bounds.cell]
    else:
        output = model(**model_inputs(model, row))
        start_logits = output.start_logits[0]
        end_logits = output.end_logits[0]
    return start_logits[:tokens], end_logits[:tokens]


def model_inputs(model: PreTrainedModel, row: Row) -> dict[str, Any]:
    """Return the arguments with which `model` processes `row`, on its device, as separate windows:
    input_ids, position_ids [1, T], packed_layout, and token_type_ids [1, T] if the model has them.
    Raises UserError if the model would ignore the layout and attend across windows.
    """
    # The library takes any registered name for every model; MPNet or DeBERTa then run their own.
    if is_padded(model) or not getattr(model, "_supports_attention_backend", False):
        raise UserError(
            f"{type(model).__name__} cannot run packed rows",
            key="hyperparameters.model",
            cure="use an encoder such as ALBERT, BERT or RoBERTa",
        )
    inputs = {
        "input_ids": row["input_ids"][None],
        "position_ids": (row["position_ids"] + first_position(model))[None],
        "packed_layout": RowBounds(row["cu_seqlens"], len(row["input_ids"]), row["max_length"]),
    }
    if takes_segments(model):
        inputs["token_type_ids"] = row["token_type_ids"][None]
    return inputs


def padded_inputs(model: PreTrainedModel, row: Row) -> tuple[dict[str, Tensor], RowBounds]:
    """Return the arguments with which `model` processes the n windows of a row as a padded batch,
    int64 [n, L] each, and the bounds, which know the cell of each token.
    """
    accepted = inspect.signature(model.forward).parameters
    bounds = RowBounds(row["cu_seqlens"], len(row["input_ids"]), row["max_length"])
    filler = model.config.get_text_config().pad_token_id or 0
    # Some of these models take no mask or no segments.
    inputs = {"input_ids": bounds.grid(row["input_ids"], fill=filler)}  # [n, L]
    if "attention_mask" in accepted:
        inputs["attention_mask"] = bounds.is_key[:, 0, 0].long()
    if takes_segments(model) and "token_type_ids" in accepted:
        inputs["token_type_ids"] = bounds.grid(row["token_type_ids"])
    return inputs, bounds


def first_position(model: PreTrainedModel) -> int:
    """Return 0, or padding_idx + 1 if the position table has a padding row (fairseq's models)."""
    embeddings = getattr(model.base_model, "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    padding_idx = getattr(table, "padding_idx", None)
    return 0 if padding_idx is None else padding_idx + 1


def positions(model: PreTrainedModel) -> int | None:
    """Return the tokens that fit a model's table of positions; None if it has no such table."""
    size = getattr(model.config, "max_position_embeddings", None) or -1  # GPT-2's is an alias
    if size < 0 or not getattr(model.config, "position_biased_input", True):
        return None
    return size - first_position(model)


@torch.no_grad()
def pack_or_pad(model: PreTrainedModel, read_logits: ReadLogits = read_spans) -> None:
    """Leave a model packed if packed rows give the logits of padded ones; else make it run padded,
    and log it. `read_logits` returns logits [T] of all tokens of a row, one or more of each. Raises
    UserError if the model does not run on windows of tokens at all.
    """
    was_training = model.training
    model.eval()
    row = _probe(model)
    tokens = len(row["input_ids"])
    packed = None
    if not is_padded(model):
        with contextlib.suppress(Exception):  # whatever a model raises that takes no layout
            packed = torch.stack(read_logits(model, row, tokens))  # [logits, T]
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    padded = _run_padded(model, row, read_logits)

    # By their own spread: those of a new head may all be small.
    if packed is not None and (packed - padded).abs().max() <= 1e-3 * padded.std():
        model.set_attn_implementation(PACKED)
    else:
        log.info(
            "%s runs windows of like lengths, padded: its attention is not softmax(q k) v alone",
            type(model).__name__,
        )
        _warn_of_padding(model, row, padded, read_logits)
    model.train(was_training)


def _run_padded(model: PreTrainedModel, row: Row, read_logits: ReadLogits) -> Tensor:
    """Return the padded logits of a row, [logits, T]; raise UserError if they are not usable."""
    name = type(model).__name__
    try:
        logits = torch.stack(read_logits(model, row, len(row["input_ids"])))
    except Exception as error:  # whatever a model raises for inputs that are not its own
        raise UserError(
            f"{name} does not run on windows of tokens ({first_line(error)})",
            key="hyperparameters.model",
            cure="use an encoder such as BERT",
        ) from None
    if not is_usable(logits):
        raise UserError(
            f"the logits of {name} are not finite numbers",
            key="hyperparameters.model",
            cure="give other weights",
        )
    return logits


def _warn_of_padding(
    model: PreTrainedModel, row: Row, padded: Tensor, read_logits: ReadLogits
) -> None:
    """Log a warning if the last window of `row` has other logits alone than in `padded`
    [logits, T], where it is padded to the longest.
    """
    # The last window is the shorter one, which is padded beside the first.
    begin, end = row["cu_seqlens"][-2:].tolist()
    last = convert_row(row, kind=Tensor, change=lambda column: column[begin:end])
    last["cu_seqlens"] = row["cu_seqlens"][-2:] - begin
    last["max_length"] = end - begin
    alone = torch.stack(read_logits(model, last, end - begin))  # [logits, end - begin]
    difference = (alone - padded[:, begin:end]).abs().max()
    if difference > 1e-3 * padded.std():
        log.warning(
            "%s: its logits depend on the padding, and so on the other windows of a row",
            type(model).__name__,
        )


def _probe(model: PreTrainedModel) -> Row:
    """Return two windows of 9 and 6 tokens, separated as a pair of the model's tokenizer is.

    They are short, so BigBird attends in full from here on: if it changed with the lengths of its
    windows, no restart would be exact.
    """
    config = model.config
    separator = getattr(config, "sep_token_id", None)
    special = {separator, getattr(config, "pad_token_id", None)}
    size = getattr(config, "vocab_size", 100)  # CANINE's tokens are characters, any number
    usual = [number for number in range(size) if number not in special]
    input_ids = torch.tensor([usual[place % len(usual)] for place in range(15)])
    if separator is not None and separator < size:
        # Longformer looks for three in a window.
        input_ids[torch.tensor([3, 4, 8, 9 + 2, 9 + 3, 9 + 5])] = separator
    row = dummy_row(tokens=15, longest=9, device=model.device)
    row["input_ids"] = input_ids.to(model.device)
    row["token_type_ids"] = (row["position_ids"] > 3).long()
    return row


def has_segments(config: PretrainedConfig) -> bool:
    """Return whether a model of `config` distinguishes segments."""
    return getattr(config, "type_vocab_size", 0) > 1 or config.model_type == "xlnet"


def takes_segments(model: PreTrainedModel) -> bool:
    """Return whether a model gets token_type_ids: if it has segments, unless its config says that
    it was trained without (`follow_tokenizer`).
    """
    return has_segments(model.config) and getattr(model.config, "segments", True)


def follow_tokenizer(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have a model run without segments if its tokenizer lists none; log where the two differ.

    The choice is stored in the model's config, and so in checkpoints and exports.
    """
    listed = "token_type_ids" in tokenizer.model_input_names
    if listed or not has_segments(model.config) or not _second_segment(tokenizer):
        return
    # ALBERT was pretrained with both segments, whatever its tokenizer's class.
    tokenizer_class = type(tokenizer).__name__
    trained_with = model.config.model_type == "albert" or tokenizer_class in _DROPPED
    if not trained_with:
        model.config.segments = False
        consequence = "runs without, as in transformers"
    else:
        consequence = "gets both segments, as it was trained"
    log.info(
        "%s has segments, and its %s lists no token_type_ids: it %s",
        type(model).__name__,
        tokenizer_class,
        consequence,
    )


def _second_segment(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a fast tokenizer gives the second text of a pair another segment."""
    if not tokenizer.is_fast:
        return False  # refused when it is to make windows
    with tokenizing():
        pair = tokenizer.backend_tokenizer.encode("a", "a")
        return any(pair.type_ids)
