"""Packed rows of a causal language model: document segments end to end, each read alone.

A row has no padding, and its segments do not see each other. The price is that a model must take
positions and bounds from the row, which not every type of transformers does: `check_family`.
"""

import copy
from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from detalbert.engine.attention import PACKED_CAUSAL, RowBounds
from detalbert.engine.forward import pad_row
from detalbert.errors import UserError, as_user_error, first_line

NO_TARGET = -100  # as torch's cross_entropy
PROVEN = "gpt2, gpt_neox, llama or qwen2"
_TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "head_dim": 8,
    "intermediate_size": 64,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
_TOLERANCE = 1e-4  # of the largest logit; rounding gives 1e-6, a leak more than 0.1


class CausalRow(TypedDict):
    """One forward: n document segments, T tokens in all."""

    input_ids: Tensor  # int64 [T]
    targets: Tensor  # int64 [T], the token after each, NO_TARGET at the end of a segment
    position_ids: Tensor  # int64 [T], from 0 in every segment
    cu_seqlens: Tensor  # int32 [n + 1], segment i is tokens cu_seqlens[i]:cu_seqlens[i + 1]
    max_length: int  # tokens of the longest segment, known without a look at the device


def pack(windows: Sequence[tuple[Tensor, Tensor]]) -> CausalRow:
    """Pack the windows of one forward as a row.

    Tokens 5 6 | 7 8 9 with lengths 2 and 3 give inputs 5 6 7 8 and targets 6 none 8 9: a window's
    last token is only a target, and what follows a document's end is not a target.

    Args:
        windows: of each, tokens [L + 1], integers, and lengths [segments] of its segments, which
            add up to L + 1.
    """
    inputs = []
    targets = []
    lengths = []
    for tokens, segments in windows:
        tokens = tokens.long()
        segments = segments.long()
        window_targets = tokens[1:].clone()
        segment_ends = segments.cumsum(0)
        window_targets[segment_ends[:-1] - 1] = NO_TARGET
        inputs.append(tokens[:-1])
        targets.append(window_targets)

        # The last token is no input, and may be a segment's only one.
        input_segments = segments.clone()
        input_segments[-1] -= 1
        lengths.append(input_segments[input_segments > 0])

    # Positions count from 0 in each segment.
    row_lengths = torch.cat(lengths)  # [n]
    ends = row_lengths.cumsum(0)
    starts = (ends - row_lengths).repeat_interleave(row_lengths)  # [T]
    return {
        "input_ids": torch.cat(inputs),
        "targets": torch.cat(targets),
        "position_ids": torch.arange(len(starts)) - starts,
        "cu_seqlens": torch.cat([ends.new_zeros(1), ends]).int(),
        "max_length": int(row_lengths.max()),
    }


def count_targets(row: CausalRow) -> int:
    """Return how many tokens of `row` have a target."""
    return int((row["targets"] != NO_TARGET).sum())


def hidden_states(model: PreTrainedModel, row: CausalRow) -> Tensor:
    """Return the inputs of the vocabulary head, [T, hidden]; each segment attends to itself only.

    Args:
        model: a causal model of transformers with `attn_implementation=PACKED_CAUSAL`; rows are
            padded for one with compiled layers.
        row: on its device.
    """
    # Compiled code takes few lengths of rows.
    tokens = len(row["input_ids"])
    padded = pad_row(row, getattr(model, "row_multiple", 1))
    bounds = RowBounds(padded["cu_seqlens"], len(padded["input_ids"]), padded["max_length"])
    output = model.base_model(
        input_ids=padded["input_ids"][None],
        position_ids=padded["position_ids"][None],
        packed_layout=bounds,
        use_cache=False,
    )
    return output.last_hidden_state[0, :tokens]


def check_family(config: PretrainedConfig) -> None:
    """Raise UserError unless packed rows give transformers' logits for separate documents.

    Silently wrong otherwise: attention of the model's own or over a sliding window, positions that
    come from a mask (Bloom), a head with a bias (Phi) or its own scale (Cohere).
    """
    key = "hyperparameters.model"
    cure = f"use {PROVEN}"

    def unreadable(error: Exception) -> UserError:
        problem = f"{config.model_type} does not read packed rows: {first_line(error)}"
        return UserError(problem, key=key, cure=cure)

    with as_user_error(unreadable):
        error = _largest_error(tiny_config(config))
    if not error <= _TOLERANCE:
        raise UserError(
            f"{config.model_type} reads packed rows wrongly "
            f"(its logits are off by {error:.2g} of the largest)",
            key=key,
            cure=cure,
        )


def tiny_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return a config of the same family and switches, with two narrow layers."""
    # Attributes have another name in some configs: n_layer of GPT-2 is num_hidden_layers.
    keys = copy.deepcopy(config.to_dict())
    sizes = dict(_TINY)
    kv_heads = getattr(config, "num_key_value_heads", None)
    if kv_heads is not None:
        sizes["num_key_value_heads"] = _tiny_kv_heads(kv_heads, config.num_attention_heads)
    for name, size in sizes.items():
        name = config.attribute_map.get(name, name)
        if keys.get(name) is not None:
            keys[name] = size
    if keys.get("layer_types"):
        keys["layer_types"] = keys["layer_types"][:2]
    # Special tokens may be beyond the tiny vocabulary.
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        keys[name] = None
    return AutoConfig.for_model(keys.pop("model_type"), **keys)


def _tiny_kv_heads(kv_heads: int, heads: int) -> int:
    """Return how many of the tiny model's 4 heads have their own keys and values: all, half of them
    or one, as in the model.
    """
    if kv_heads == heads:
        return 4
    return 2 if kv_heads > 1 else 1


@torch.no_grad()
def _largest_error(config: PretrainedConfig) -> float:
    """Return the largest difference of packed logits from transformers' own, relative to these."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _make_model(config, PACKED_CAUSAL)
        reference_model = _make_model(config, "eager")
        for parameter in model.parameters():  # so large that every part matters
            parameter += 0.2 * torch.randn_like(parameter)
        tokens = torch.randint(config.vocab_size, (22,))
    reference_model.load_state_dict(model.state_dict())

    # Three documents in one row, and each by itself; the last token is only a target.
    row = pack([(tokens, torch.tensor([7, 5, 10]))])
    logits = hidden_states(model, row) @ model.get_output_embeddings().weight.t()
    documents = row["input_ids"].split([7, 5, 9])
    reference = torch.cat([reference_model(tokens[None]).logits[0] for tokens in documents])
    difference = (logits - reference).abs().max()
    return float(difference / reference.abs().max())


def _make_model(config: PretrainedConfig, attention: str) -> Any:
    model = AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation=attention, dtype=torch.float32
    )
    return model.eval()
