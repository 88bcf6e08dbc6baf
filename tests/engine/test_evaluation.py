"""Losses of packed rows, window by window."""

import pytest
import torch

from detalbert.engine.attention import answer_logits
from detalbert.engine.evaluation import row_losses
from tests.fakes.encoders import LENGTHS, MODELS, make_model, make_row


@pytest.mark.parametrize("name", MODELS)
def test_losses_are_the_librarys_own_span_loss(name: str) -> None:
    model, library = make_model(name), make_model(name, "sdpa")
    row, first = make_row(LENGTHS), 0
    losses = row_losses(row, *answer_logits(model, row))
    positions = row["start_positions"], row["end_positions"]
    for loss, start, end, length in zip(losses, *positions, LENGTHS, strict=True):
        here = slice(first, first + length)
        batch = {"input_ids": row["input_ids"][None, here]}
        if getattr(model.config, "type_vocab_size", 0) > 1:
            batch["token_type_ids"] = row["token_type_ids"][None, here]
        alone = library(**batch, start_positions=start[None], end_positions=end[None]).loss
        torch.testing.assert_close(loss, alone, rtol=1e-5, atol=1e-6)
        first += length


def test_losses_are_fp32_and_do_not_depend_on_the_grid() -> None:
    row, draw = make_row(LENGTHS), torch.Generator().manual_seed(1)
    logits = torch.randn(2, sum(LENGTHS), generator=draw).mul(8).bfloat16().requires_grad_()
    narrow = row_losses(row, *logits)
    wide = row_losses({**row, "max_length": sum(LENGTHS)}, *logits)
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide, narrow, rtol=1e-6, atol=0)
    start, end = (x.float().split(LENGTHS) for x in logits)
    answers = zip(start, end, row["start_positions"], row["end_positions"], strict=True)
    expected = [(s.logsumexp(0) - s[i] + e.logsumexp(0) - e[j]) / 2 for s, e, i, j in answers]
    torch.testing.assert_close(wide, torch.stack(expected), rtol=1e-5, atol=1e-6)
    wide.sum().backward()
    assert logits.grad.isfinite().all() and logits.grad.abs().sum() > 0
