"""Initialization of a small ALBERT by which it learns to match words within minutes.

Attention must learn which tokens are near, and which are alike. Here it starts with both. Positions
are sinusoids (Vaswani et al. 2017, arXiv:1706.03762, 3.5) in channels of their own, keys equal
queries, and half of the heads compare tokens, half positions. Training changes all of it.
"""

import math

import torch
from transformers import AlbertModel

# One channel in 4 holds positions.
_SHARE = 4
# Deviation of query and key weights; larger than usual, so that heads start sharp.
_GAIN = 0.1
# Amplitude of the sinusoids, about that of the tokens' embeddings.
_HEIGHT = 0.07
# Lengths of the waves, in tokens.
_SHORTEST_WAVE = 6
_LONGEST_WAVE = 600


@torch.no_grad()
def start_matching(albert: AlbertModel) -> None:
    """Set the weights of an `AlbertModel` in place. Its embedding size is its hidden size.

    The last quarter of the channels holds positions, the others the token. The first half of the
    heads compares tokens, the second half positions.
    """
    tokens = albert.embeddings.word_embeddings.weight  # [V, h]
    positions = albert.embeddings.position_embeddings.weight  # [positions, h]
    size = tokens.shape[1]
    width = size // _SHARE  # channels of positions, the last ones

    # Sines and cosines of waves whose lengths grow by a constant factor.
    waves = torch.logspace(
        start=math.log10(_SHORTEST_WAVE), end=math.log10(_LONGEST_WAVE), steps=width // 2
    )
    rates = 2 * math.pi / waves
    angles = torch.arange(len(positions))[:, None] * rates  # [positions, width / 2]
    tokens[:, -width:] = 0
    positions.zero_()
    sinusoids = torch.cat((angles.sin(), angles.cos()), dim=1)  # [positions, width]
    positions[:, -width:] = _HEIGHT * sinusoids
    # Embeddings reach the layers as they are.
    albert.encoder.embedding_hidden_mapping_in.weight.copy_(torch.eye(size))

    # Keys equal queries: a head's scores are largest where both texts are alike in its channels.
    attention = albert.encoder.albert_layer_groups[0].albert_layers[0].attention
    query = attention.query.weight  # [heads x head size, h]
    half = size // 2  # rows of the first half of the heads
    query.normal_(mean=0, std=_GAIN)
    query[:half, -width:] = 0
    query[half:, :-width] = 0
    attention.key.weight.copy_(query)
