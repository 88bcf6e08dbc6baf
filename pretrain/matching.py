"""Initialization of a small ALBERT by which it learns to match words within minutes.

Attention must learn which tokens are near, and which are alike. Here it starts with both. Positions
are sinusoids (Vaswani et al. 2017, arXiv:1706.03762, 3.5) in channels of their own, keys equal
queries, and half of the heads compare tokens, half positions. Training changes all of it.
"""

import math
from typing import Any

import torch

_SHARE = 4  # one channel in 4 holds positions
_GAIN = 0.1  # deviation of query and key weights; larger than usual, so that heads start sharp
_HEIGHT = 0.07  # amplitude of the sinusoids, about that of the pieces' embeddings
_WAVES = 6, 600  # the shortest and the longest wave, in tokens


def start_matching(albert: Any) -> None:
    """Set the weights of an `AlbertModel` in place. Its embedding size is its hidden size.

    The last quarter of the channels holds positions, the others the token. The first half of the
    heads compares tokens, the second half positions.
    """
    words = albert.embeddings.word_embeddings.weight  # [V, h]
    places = albert.embeddings.position_embeddings.weight  # [positions, h]
    attention = albert.encoder.albert_layer_groups[0].albert_layers[0].attention
    size = words.shape[1]
    width = size // _SHARE
    shortest, longest = map(math.log10, _WAVES)
    rates = 2 * math.pi / torch.logspace(shortest, longest, width // 2)
    angles = torch.arange(len(places))[:, None] * rates  # [positions, width / 2]
    with torch.no_grad():
        words[:, -width:] = 0
        places.zero_()
        places[:, -width:] = _HEIGHT * torch.cat((angles.sin(), angles.cos()), dim=1)
        albert.encoder.embedding_hidden_mapping_in.weight.copy_(torch.eye(size))
        half = size // 2  # rows of the first half of the heads
        attention.query.weight.normal_(0, _GAIN)
        attention.query.weight[:half, -width:] = 0
        attention.query.weight[half:, :-width] = 0
        attention.key.weight.copy_(attention.query.weight)
