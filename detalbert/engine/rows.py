"""Packed rows: n windows end to end, T real tokens, no padding."""

from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar, cast

import torch
from torch import Tensor


class Row(TypedDict):
    """Columns of every packed row."""

    input_ids: Tensor  # int64 [T]
    token_type_ids: Tensor  # int64 [T], 1 in a window's second segment
    position_ids: Tensor  # int64 [T], from 0 in every window
    cu_seqlens: Tensor  # int32 [n + 1], window i is tokens cu_seqlens[i]:cu_seqlens[i + 1]
    max_length: int  # tokens of the longest window, known without a look at the device
    windows: Tensor  # int64 [n], the number of each window in its split


class SpanRow(Row):
    """A row with one labelled span per window; positions count from the window's start."""

    start_positions: Tensor  # int64 [n], first token of the span; -100: no loss for this window
    end_positions: Tensor  # int64 [n], its last token


class SquadRow(SpanRow):
    """A row of questions and contexts; a span at [CLS], position 0, means "no answer here"."""

    context_start: Tensor  # int64 [n], the first position that is context
    context_end: Tensor  # int64 [n], the position after the last


AnyRow = TypeVar("AnyRow", bound=Mapping[str, Any])


def to_device(row: AnyRow, device: torch.device) -> AnyRow:
    """Return `row` with its tensors on `device`."""
    moved = {
        name: value.to(device, non_blocking=True) if isinstance(value, Tensor) else value
        for name, value in row.items()
    }
    return cast(AnyRow, moved)
