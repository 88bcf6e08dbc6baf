"""The start of a small model: heads of alike pieces, heads of near positions."""

from typing import Any

import pytest
import torch
from transformers import AlbertConfig, AlbertForPreTraining

from detalbert.errors import UserError
from pretrain.hparams import parse_pretrain_hparams
from pretrain.matching import start_matching

HEADS = 4


@pytest.fixture
def model() -> AlbertForPreTraining:
    torch.manual_seed(0)
    keys = {"embedding_size": 128, "hidden_size": 128, "intermediate_size": 64}
    sizes = {"vocab_size": 500, "num_hidden_layers": 1, "max_position_embeddings": 64, **keys}
    config = AlbertConfig(num_attention_heads=HEADS, initializer_range=0.05, **sizes)
    config._attn_implementation = "eager"
    return AlbertForPreTraining(config).eval()


def attention(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """First layer's, [heads, T, T]."""
    with torch.no_grad():
        return model.albert(ids[None], output_attentions=True).attentions[0][0]


def test_half_of_the_heads_find_equal_pieces_the_others_near_positions(model: Any) -> None:
    ids = torch.randperm(500)[:32].repeat(2)  # every piece again, 32 places later
    before = attention(model, ids)
    start_matching(model.albert)
    weights = attention(model, ids)
    at = torch.arange(32)
    again = weights[:, at + 32, at]  # [heads, 32]: looks back at its own piece
    near = weights[:, at[1:], at[:-1]]
    far = weights[:, at[:8], at[:8] + 20]
    matching, placed = again[: HEADS // 2], again[HEADS // 2 :]
    assert matching.mean() > 2 / 64 > 1.5 * placed.mean()
    assert near[HEADS // 2 :].mean() > 1.5 * far[HEADS // 2 :].mean()
    assert before[:, at + 32, at].mean() < 1.5 / 64
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    "values", [{"size": "tiny"}, {"model": "x"}, {"size": "tiny", "model_config": {"a": 1}}]
)
def test_only_a_square_model_is_taken(values: Any) -> None:
    values = {**values, "max_seq_length": 64, "matching_start": True}
    with pytest.raises(UserError, match="hyperparameters.matching_start: it is for a model"):
        parse_pretrain_hparams(values)
    square = {"size": "tiny", "model": None, "model_config": {"embedding_size": 128}}
    assert parse_pretrain_hparams({**values, **square}).matching_start
