"""The most tokens of a row, by the memory of two measured ones."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from detalbert.engine.packed_trial import choose_tokens, fit_tokens
from detalbert.engine.rows import CPU_TOKENS

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("few_bytes", "many_bytes", "room", "tokens"),
    [
        (10**9, 1.5 * 10**9, 10**10, 14_336),
        (768e6, 1536e6, 6e8, 384),  # whole windows below 1,024 tokens
        (768e6, 1536e6, 1e6, 384),  # never less than one
        (768, 1536, 1e12, 32_768),
        (768, 1536, 1023, 768),
        (1000, 1000, 5000, 4096),  # at least a byte per token: 5,000 - 1,000 + 768 tokens
    ],
)
def test_tokens_are_the_end_of_a_line(few_bytes, many_bytes, room, tokens):
    assert fit_tokens(few_bytes, many_bytes, room=room, longest=384) == tokens


def test_a_gpus_tokens_are_by_what_is_free_less_the_moments(
    monkeypatch,
):
    """5,000,000 parameters; 400 MB free, 100 reserved, 50 held; a row costs 10 MB, 20 kB a token.

    Left are 500 - 50 - 40 MB, of these 92 % are 377.2: 18,360 tokens.
    """
    row_bytes = []

    def run_row(row):
        row_bytes.append(6 * 10**7 + 20_000 * len(row["input_ids"]))

    answers = {
        "mem_get_info": lambda device: (400 * 10**6, 10**9),
        "memory_reserved": lambda device: 100 * 10**6,
        "memory_allocated": lambda device: 50 * 10**6,
        "reset_peak_memory_stats": lambda device: row_bytes.clear(),
        "max_memory_allocated": lambda device: row_bytes[0],
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    forward = SimpleNamespace(
        device=torch.device("cuda"),
        model=nn.Linear(5000, 1000, bias=False, device="meta"),
        refresh=lambda: None,
        zero_loss_backward=run_row,
    )
    monkeypatch.setattr(
        "detalbert.engine.packed_trial.dummy_row",
        lambda tokens, longest, device: {"input_ids": range(tokens)},
    )
    assert choose_tokens(forward, 384, slots=1) == 17 * 1024

    def too_large(row):
        raise torch.OutOfMemoryError

    forward.zero_loss_backward = too_large
    assert choose_tokens(forward, 384, slots=1) == 384
    forward.device = CPU
    assert choose_tokens(forward, 384, slots=1) == CPU_TOKENS
