"""Packed rows of a causal language model: pieces of documents end to end, each read alone."""

from collections.abc import Sequence
from typing import TypedDict

import torch
from torch import Tensor

from detalbert.engine.attention import Layout as Bounds

NO_TARGET = -100  # as torch's cross_entropy


class CausalRow(TypedDict):
    """One forward: n pieces of documents, T tokens in all."""

    input_ids: Tensor  # int64 [T]
    targets: Tensor  # int64 [T], the token after each, NO_TARGET at the end of a piece
    position_ids: Tensor  # int64 [T], from 0 in every piece
    cu_seqlens: Tensor  # int32 [n + 1], piece i is tokens cu_seqlens[i]:cu_seqlens[i + 1]
    max_length: int  # tokens of the longest piece, known without a look at the device


def pack(windows: Sequence[tuple[Tensor, Tensor]]) -> CausalRow:
    """The windows of one forward as a row.

    Tokens 5 6 | 7 8 9 with lengths 2 and 3 give inputs 5 6 7 8 and targets 6 none 8 9: a window's
    last token is a target only, and what follows a document's end is no target.

    Args: windows: of each its tokens [L + 1], integers, and the lengths [pieces] of the documents'
        pieces in it, which add up to L + 1.
    """
    inputs, targets, lengths = [], [], []
    for tokens, pieces in windows:
        tokens, pieces = tokens.long(), pieces.long()
        if int(pieces.sum()) != len(tokens):
            raise ValueError(f"pieces of {int(pieces.sum())} tokens in a window of {len(tokens)}")
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


def empty_row() -> CausalRow:
    """One token and no target: a forward and a backward that add nothing to any sum."""
    return {
        "input_ids": torch.zeros(1, dtype=torch.long),
        "targets": torch.tensor([NO_TARGET]),
        "position_ids": torch.zeros(1, dtype=torch.long),
        "cu_seqlens": torch.tensor([0, 1], dtype=torch.int32),
        "max_length": 1,
    }


def count_targets(row: CausalRow) -> int:
    return int((row["targets"] != NO_TARGET).sum())


def hidden_states(model: torch.nn.Module, row: CausalRow) -> Tensor:
    """What goes into the vocabulary head, [T, hidden], each piece attending to itself alone.

    Args: model: a library causal model made with `attn_implementation=PACKED_CAUSAL`.
    """
    output = model.base_model(
        input_ids=row["input_ids"][None],
        position_ids=row["position_ids"][None],
        packed_layout=Bounds(row["cu_seqlens"], len(row["input_ids"]), row["max_length"]),
        use_cache=False,
    )
    return output.last_hidden_state[0]
