"""Packed rows of a causal language model: document segments end to end, each read alone."""

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
_TINY = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "head_dim": 8}
_TINY |= {"intermediate_size": 64, "vocab_size": 64, "max_position_embeddings": 32}
_TOLERANCE = 1e-4  # of the largest logit; rounding gives 1e-6, a leak more than 0.1


class CausalRow(TypedDict):
    """One forward: n document segments, T tokens in all."""

    input_ids: Tensor  # int64 [T]
    targets: Tensor  # int64 [T], the token after each, NO_TARGET at the end of a piece
    position_ids: Tensor  # int64 [T], from 0 in every piece
    cu_seqlens: Tensor  # int32 [n + 1], piece i is tokens cu_seqlens[i]:cu_seqlens[i + 1]
    max_length: int  # tokens of the longest piece, known without a look at the device


def pack(windows: Sequence[tuple[Tensor, Tensor]]) -> CausalRow:
    """Pack the windows of one forward as a row.

    Tokens 5 6 | 7 8 9 with lengths 2 and 3 give inputs 5 6 7 8 and targets 6 none 8 9: a window's
    last token is only a target, and what follows a document's end is not a target. A window is
    tokens [L + 1], integers, and lengths [segments] of its segments, which add up to L + 1.
    """
    inputs, targets, lengths = [], [], []
    for tokens, pieces in windows:
        tokens, pieces = tokens.long(), pieces.long()
        target = tokens[1:].clone()
        target[pieces.cumsum(0)[:-1] - 1] = NO_TARGET
        pieces = pieces.clone()
        pieces[-1] -= 1
        inputs.append(tokens[:-1])
        targets.append(target)
        lengths.append(pieces[pieces > 0])
    joined = torch.cat(lengths)  # [n]
    ends = joined.cumsum(0)
    starts = (ends - joined).repeat_interleave(joined)  # [T]
    return {
        "input_ids": torch.cat(inputs),
        "targets": torch.cat(targets),
        "position_ids": torch.arange(len(starts)) - starts,
        "cu_seqlens": torch.cat([ends.new_zeros(1), ends]).int(),
        "max_length": int(joined.max()),
    }


def count_targets(row: CausalRow) -> int:
    return int((row["targets"] != NO_TARGET).sum())


def hidden_states(model: PreTrainedModel, row: CausalRow) -> Tensor:
    """Return the inputs of the vocabulary head, [T, hidden]; each segment attends to itself only.
    `model` is a causal model of transformers with `attn_implementation=PACKED_CAUSAL`; rows are
    padded for one with compiled layers.
    """
    tokens = len(row["input_ids"])
    row = pad_row(row, getattr(model, "row_multiple", 1))
    output = model.base_model(
        input_ids=row["input_ids"][None],
        position_ids=row["position_ids"][None],
        packed_layout=RowBounds(row["cu_seqlens"], len(row["input_ids"]), row["max_length"]),
        use_cache=False,
    )
    return output.last_hidden_state[0, :tokens]


def check_family(config: PretrainedConfig) -> None:
    """Raise UserError unless packed rows give transformers' logits for separate documents.

    Silently wrong otherwise: attention of the model's own or over a sliding window, positions that
    come from a mask (Bloom), a head with a bias (Phi) or its own scale (Cohere).
    """
    kind = f"hyperparameters.model: {config.model_type}"
    fails = f"{kind} does not read packed rows"
    with as_user_error(lambda error: UserError(f"{fails}: {first_line(error)}; use {PROVEN}")):
        off = _distance(tiny_config(config))
    if not off <= _TOLERANCE:
        wrong = f"reads packed rows wrongly (its logits are off by {off:.2g} of the largest)"
        raise UserError(f"{kind} {wrong}; use {PROVEN}")


def tiny_config(config: PretrainedConfig) -> PretrainedConfig:
    """Return a config of the same family and switches, with two narrow layers."""
    keys: dict[str, Any] = copy.deepcopy(config.to_dict())
    small, shared = dict(_TINY), getattr(config, "num_key_value_heads", None)
    if shared is not None:
        whole = shared == config.num_attention_heads
        small["num_key_value_heads"] = 4 if whole else 2 if shared > 1 else 1
    for name, size in small.items():
        name = config.attribute_map.get(name, name)
        if keys.get(name) is not None:
            keys[name] = size
    if keys.get("layer_types"):
        keys["layer_types"] = keys["layer_types"][:2]
    keys.update(dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")))
    return AutoConfig.for_model(keys.pop("model_type"), **keys)


@torch.no_grad()
def _distance(config: PretrainedConfig) -> float:
    """Return the largest difference of packed logits from transformers' own, relative to these."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, library = _make(config, PACKED_CAUSAL), _make(config, "eager")
        for parameter in model.parameters():  # so large that every part matters
            parameter += 0.2 * torch.randn_like(parameter)
        ids = torch.randint(config.vocab_size, (22,))
    library.load_state_dict(model.state_dict())
    row = pack([(ids, torch.tensor([7, 5, 10]))])
    packed = hidden_states(model, row) @ model.get_output_embeddings().weight.t()
    apart = [library(piece[None]).logits[0] for piece in row["input_ids"].split([7, 5, 9])]
    reference = torch.cat(apart)
    return float((packed - reference).abs().max() / reference.abs().max())


def _make(config: PretrainedConfig, attention: str) -> Any:
    return AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation=attention, dtype=torch.float32
    ).eval()
