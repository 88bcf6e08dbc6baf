"""Windows made up by their lengths."""

import numpy as np

from detalbert.squad.windows import Windows


def make_windows(lengths: np.ndarray) -> Windows:
    """With two-token questions and contexts of `lengths` - 5."""
    context = np.asarray(lengths, np.int32) - 5
    ends = np.cumsum(context, dtype=np.int64)
    total, count = int(context.sum()), len(context)
    return Windows(
        context_ids=np.arange(total, dtype=np.int32),
        context_offsets=np.zeros((total, 2), np.int32),
        question_ids=np.arange(2 * count, dtype=np.int32),
        question_ptr=np.arange(0, 2 * count + 1, 2, dtype=np.int64),
        example_index=np.arange(count, dtype=np.int32),
        context_begin=ends - context,
        context_length=context,
        start_positions=np.zeros(count, np.int32),
        end_positions=np.zeros(count, np.int32),
        prefix_ids=np.array([1], np.int32),
        middle_ids=np.array([2], np.int32),
        suffix_ids=np.array([2], np.int32),
        segments=np.array([0, 0, 0, 1, 1], np.int32),
    )
