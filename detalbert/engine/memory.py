"""Bytes that training takes per GPU, computed from a model's sizes without running it.

What autograd keeps for backward was counted with saved-tensor hooks.
"""

from typing import Any, NamedTuple

OVERHEAD = 1.5 * 2**30  # CUDA's context, NCCL's and cuBLAS's buffers, fragmentation
USABLE = 0.95  # of the memory as sold; the driver keeps some
HEAD_CHUNK = 1024  # tokens whose logits a causal model has at a time: lm/loss.py
PADDING = 2.2  # places of a padded grid for a token of SQuAD


class _Kept(NamedTuple):
    """Bytes per token and layer: factors of the hidden size h and of the feed-forward size f."""

    whole: int  # x h: inputs of norms and projections, which tensor-parallel peers all have
    heads: int  # x h: query, key, value, output and what they are made of
    inner: int  # x f
    outside: int  # x h, once: embeddings, last norm, the head's gradient
    dropout: int = 0  # x h for the dropouts of a layer


# (half precision, fp32). Norms are in fp32 on CUDA. Llama, half: two norms keep their input in fp32
# and twice in half (2 * (4 + 2 + 2) = 16); rotated q, k, v and the output 8; gate, its SiLU, up and
# their product 8 of the inner size. Grouped KV heads are taken to be copied to all heads.
_LLAMA = _Kept(16, 8, 8, 9), _Kept(24, 16, 16, 14)
_BERT = _Kept(16, 8, 4, 6, 4), _Kept(16, 16, 8, 8, 8)
KEPT = {"llama": _LLAMA, "qwen2": _LLAMA, "bert": _BERT, "roberta": _BERT, "electra": _BERT}
KEPT |= {
    "gpt_neox": (_Kept(8, 12, 4, 4), _Kept(16, 24, 8, 8)),
    "gpt2": (_Kept(8, 8, 10, 4), _Kept(16, 16, 20, 8)),
    "albert": (_Kept(16, 8, 4, 2, 2), _Kept(16, 16, 8, 4, 4)),
    "distilbert": (_BERT[0]._replace(dropout=2), _BERT[1]._replace(dropout=4)),
}
_UNKNOWN = _Kept(0, 0, 0, 0), _Kept(0, 0, 0, 0)


class Sizes(NamedTuple):
    """Sizes of a model that determine its memory."""

    family: str  # model_type of its config
    hidden: int
    inner: int
    layers: int  # that a token goes through: 12 for ALBERT, which has the weights of one
    heads: int
    vocabulary: int
    parameters: int
    layer: int = 0  # parameters of the largest layer, which FSDP gathers at a time
    unsplit: int = 0  # parameters that tensor-parallel peers all hold: embeddings, norms
    dropout: bool = False  # of hidden states
    padded: bool = False  # attention drops weights out, which no flash kernel does

    def kept(self, half: bool) -> _Kept:
        return KEPT.get(self.family, _UNKNOWN)[not half]

    @classmethod
    def of(cls, config: Any, parameters: int, layer: int = 0, unsplit: int = 0) -> "Sizes":
        """Return the sizes for a transformers config."""
        h = config.hidden_size
        inner = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", None)
        inner = inner or getattr(config, "n_inner", None) or 4 * h
        drops = [getattr(config, name, 0) or 0 for name in ("hidden_dropout_prob", "dropout")]
        names = "attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"
        layers = config.num_hidden_layers * getattr(config, "inner_group_num", 1)
        padded = any(getattr(config, name, 0) or 0 for name in names)
        shape = h, inner, layers, config.num_attention_heads, config.vocab_size
        return cls(config.model_type, *shape, parameters, layer, unsplit, any(drops), padded)


class Memory(NamedTuple):
    """Bytes on each GPU."""

    states: float  # weights, gradients, two moments; copies and buffers of their size
    gathered: float  # what FSDP has whole at the start of the backward pass
    head: float  # a chunk's logits
    per_token: float  # of a forward's real tokens, kept for the backward pass

    def at(self, tokens: int) -> float:
        """Return the total with a forward of `tokens` tokens."""
        return self.states + self.gathered + self.head + OVERHEAD + tokens * self.per_token

    def tokens(self, gigabytes: float) -> int:
        """Return the most tokens per forward on a GPU sold with `gigabytes` GB (2^30 bytes each). 0
        or less if the model itself does not fit.
        """
        return int((gigabytes * 2**30 * USABLE - self.at(0)) // self.per_token)


def layer_bytes(sizes: Sizes, half: bool, tensor: int = 1, grid: bool = False) -> float:
    """Return the bytes per token that autograd keeps for a layer; nearly 0 if not in KEPT.

    Besides h and f: mean and deviation of two norms, and the softmax's sum per head. `grid`: on a
    GPU without a flash kernel q, k, v and the output are in the padded grid too.
    """
    kept = sizes.kept(half)
    h, f, heads = sizes.hidden, sizes.inner, sizes.heads
    split: float = kept.heads * h + kept.inner * f + 4 * heads
    if grid or sizes.padded:
        split += (2 if half else 4) * h * (4 * PADDING - 3)
    return kept.whole * h + split / tensor + 16 + kept.dropout * sizes.dropout * h


def replicated(sizes: Sizes, slots: int, half: bool, grid: bool, masked: float = 0.0) -> Memory:
    """Estimate the memory per GPU of an encoder that is replicated on every GPU, uncompiled.

    16 bytes per parameter, half-precision weights, and with several ranks another copy of the
    gradients. `grid`: see `layer_bytes`; `masked`: fraction of tokens with a vocabulary head.
    """
    states = sizes.parameters * (16 + 2 * half + 4 * (slots > 1))
    outside = sizes.kept(half).outside * sizes.hidden
    # Logits, their log-softmax in fp32, and its gradient.
    head = masked * sizes.vocabulary * ((2 if half else 4) + 8)
    return Memory(states, 0, 0, sizes.layers * layer_bytes(sizes, half, grid=grid) + outside + head)


def count_recomputed(layers: int, share: float) -> int:
    """Return how many of `layers` run again in backward, if `share` of them is to."""
    return round(share * layers)


def split(
    sizes: Sizes, shard: int, tensor: int, half: bool, recomputed: float, grid: bool
) -> Memory:
    """Estimate a causal model's memory in `shard` x `tensor` shards (lm/layout.py), uncompiled.

    As backward starts, activations of all layers exist; embeddings and head are gathered, the
    head's gradient exists twice in fp32, and so do, for one layer and the next, weights, gradients,
    and these in fp32 to be summed.
    """
    width = 2 if half else 4
    states = 16 * ((sizes.parameters - sizes.unsplit) / tensor + sizes.unsplit) / shard
    head = sizes.vocabulary * sizes.hidden
    outside = sizes.parameters - sizes.layers * sizes.layer
    gathered = sizes.layer / tensor * (3 * width + 4) + outside * width + head / tensor * 8
    logits = HEAD_CHUNK * sizes.vocabulary / tensor * (width + 4)
    layer = layer_bytes(sizes, half, tensor, grid)
    per_token: float = sizes.kept(half).outside * sizes.hidden
    again = count_recomputed(sizes.layers, recomputed)
    # Of these the inputs; as backward starts, the last one runs again.
    per_token += again * width * sizes.hidden + (sizes.layers - again + (again > 0)) * layer
    return Memory(states, gathered, logits, per_token)
