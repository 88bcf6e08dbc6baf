"""Bytes that training takes per GPU, computed from a model's sizes without running it.

What autograd keeps for backward was counted with saved-tensor hooks: a table of factors per family,
instead of a run of the model on a machine that may not be there yet. What a step has at its peak is
held against torch's own counter (tests/engine/test_peak.py).
"""

from typing import TYPE_CHECKING, NamedTuple

from detalbert.engine.flops import relative_scores

if TYPE_CHECKING:
    from transformers import PretrainedConfig

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
    dropout: int = 0  # x h: masks of a layer's dropouts, a byte an element


# (half precision, fp32). Norms are in fp32 on CUDA. Llama, half: two norms keep their input in fp32
# and twice in half (2 * (4 + 2 + 2) = 16); rotated q, k, v and the output 8; gate, its SiLU, up and
# their product 8 of the inner size. Grouped KV heads are taken to be copied to all heads.
_LLAMA = (
    _Kept(whole=16, heads=8, inner=8, outside=9),
    _Kept(whole=24, heads=16, inner=16, outside=14),
)
_NEOX = (
    _Kept(whole=8, heads=12, inner=4, outside=4),
    _Kept(whole=16, heads=24, inner=8, outside=8),
)
_GPT2 = (
    _Kept(whole=8, heads=8, inner=10, outside=4),
    _Kept(whole=16, heads=16, inner=20, outside=8),
)
_BERT = (
    _Kept(whole=16, heads=8, inner=4, outside=6, dropout=2),
    _Kept(whole=16, heads=16, inner=8, outside=8, dropout=2),
)
_ALBERT = (
    _Kept(whole=16, heads=8, inner=4, outside=2, dropout=1),
    _Kept(whole=16, heads=16, inner=8, outside=4, dropout=1),
)
_DISTILBERT = (
    _Kept(whole=16, heads=8, inner=4, outside=6, dropout=1),
    _Kept(whole=16, heads=16, inner=8, outside=8, dropout=1),
)
# A second copy of the key, divided by the scale.
_DEBERTA = (
    _Kept(whole=16, heads=10, inner=4, outside=6, dropout=2),
    _Kept(whole=16, heads=20, inner=8, outside=8, dropout=2),
)
_UNKNOWN = (
    _Kept(whole=0, heads=0, inner=0, outside=0),
    _Kept(whole=0, heads=0, inner=0, outside=0),
)
KEPT = {
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "gpt_neox": _NEOX,
    "gpt2": _GPT2,
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "modernbert": _LLAMA,  # gated and rotated, too
    "electra": _BERT,
    "albert": _ALBERT,
    "distilbert": _DISTILBERT,
    "mpnet": _BERT,
    "deberta-v2": _DEBERTA,  # and v3
}
# Families that have the score of every pair of tokens of a padded window in memory.
_SCORED = ("mpnet", "deberta-v2")


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
    blocks: int = 0  # layers with weights of their own: 1 for ALBERT
    unsplit: int = 0  # parameters that tensor-parallel peers all hold: embeddings, norms
    dropout: bool = False  # of hidden states
    padded: bool = False  # attention drops weights out, which no flash kernel does
    relative: int = 0  # DeBERTa: scores of a token, per head, with relative positions

    def kept(self, half: bool) -> _Kept:
        """Return the factors of what is kept for backward; zeros for a family not in KEPT."""
        kept_in_half, kept_in_fp32 = KEPT.get(self.family, _UNKNOWN)
        return kept_in_half if half else kept_in_fp32

    @classmethod
    def of(
        cls,
        config: "PretrainedConfig",
        parameters: int,
        layer: int = 0,
        unsplit: int = 0,
        blocks: int = 0,
    ) -> "Sizes":
        """Return the sizes for a transformers config."""
        # The same size has another name in some families.
        inner = (
            getattr(config, "intermediate_size", None)
            or getattr(config, "hidden_dim", None)
            or getattr(config, "n_inner", None)
            or 4 * config.hidden_size
        )
        return cls(
            family=config.model_type,
            hidden=config.hidden_size,
            inner=inner,
            layers=config.num_hidden_layers * getattr(config, "inner_group_num", 1),
            heads=config.num_attention_heads,
            vocabulary=config.vocab_size,
            parameters=parameters,
            layer=layer,
            blocks=blocks,
            unsplit=unsplit,
            dropout=_is_set(config, "hidden_dropout_prob", "dropout"),
            padded=_is_set(
                config, "attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"
            ),
            relative=relative_scores(config),
        )


def _is_set(config: "PretrainedConfig", *names: str) -> bool:
    """Return whether a config has one of these rates, and it is not 0."""
    return any(getattr(config, name, None) for name in names)


class Peak(NamedTuple):
    """Bytes at a moment of a step, besides the states."""

    fixed: float
    per_token: float = 0  # of a forward's real tokens


class Memory(NamedTuple):
    """Bytes on each GPU."""

    states: float  # weights, gradients, two moments; copies and buffers of their size
    gathered: float  # what FSDP has whole at the start of the backward pass; a weight's gradient
    head: float  # a chunk's logits
    per_token: float  # of a forward's real tokens, kept for the backward pass
    later: tuple[Peak, ...] = ()  # in the same step, when fewer tokens are left

    @property
    def peaks(self) -> tuple[Peak, ...]:
        return (Peak(self.gathered + self.head, self.per_token), *self.later)

    def at(self, tokens: int) -> float:
        """Return the total with a forward of `tokens` tokens."""
        highest = max(peak.fixed + tokens * peak.per_token for peak in self.peaks)
        return self.states + highest + OVERHEAD

    def fitting(self, room: float) -> int:
        """Return the most tokens per forward that `room` bytes hold; 0 if they do not hold the
        model itself.
        """
        limits = []
        for peak in self.peaks:
            left = room - self.states - OVERHEAD - peak.fixed
            if left < 0:
                return 0
            if peak.per_token:
                limits.append(int(left // peak.per_token))
        return min(limits)

    def tokens(self, gigabytes: float) -> int:
        """Return the same for a GPU sold with `gigabytes` GB (2^30 bytes each)."""
        return self.fitting(gigabytes * 2**30 * USABLE)


def layer_bytes(sizes: Sizes, half: bool, tensor: int = 1, grid: bool = False) -> float:
    """Return the bytes per token that autograd keeps for a layer; nearly 0 if not in KEPT.

    Besides h and f: mean and deviation of two norms, and the softmax's sum per head.

    Args:
        sizes: of the model.
        half: whether products are in half precision.
        tensor: ranks that share a layer's heads and inner units.
        grid: on a GPU without a flash kernel q, k, v and the output are in the padded grid too.
    """
    # What tensor parallelism splits, and what every one of its ranks keeps.
    kept = sizes.kept(half)
    width = 2 if half else 4
    split: float = kept.heads * sizes.hidden + kept.inner * sizes.inner + 4 * sizes.heads
    if (grid or sizes.padded) and sizes.family not in _SCORED:  # whose rows are padded before
        split += width * sizes.hidden * (4 * PADDING - 3)
    dropout = kept.dropout * sizes.hidden if sizes.dropout else 0
    return kept.whole * sizes.hidden + split / tensor + 16 + dropout


def score_bytes(sizes: Sizes, half: bool, longest: int) -> float:
    """Return the bytes per token that autograd keeps of a layer's scores; 0 of attention that has
    none in memory.

    Of a pair: its softmax, which is in fp32, the copy that is multiplied, and a dropout's mask; of
    a relative position its score, and the position's vector, of which every window has a copy.

    Args:
        sizes: of the model.
        half: whether products are in half precision.
        longest: tokens of a padded window.
    """
    if sizes.family not in _SCORED:
        return 0
    width = 2 if half else 4
    pair = 4 + (2 if half else 0)
    if sizes.padded:
        pair += 1 + (0 if half else 4)
    pairs = longest * sizes.heads * pair
    if sizes.relative:
        pairs += longest  # a mask for all heads
    return pairs + width * sizes.relative * (sizes.heads + sizes.hidden / longest)


def replicated(
    sizes: Sizes, slots: int, half: bool, grid: bool, longest: int, masked: float = 0.0
) -> Memory:
    """Estimate the memory per GPU of an encoder that is replicated on every GPU, uncompiled.

    16 bytes per parameter, half-precision copies of the layers' weights, and with several ranks
    another copy of the gradients. The peak is in the backward pass of the last layer.

    Args:
        sizes: of the model.
        slots: number of ranks.
        half: whether products are in half precision.
        grid: see `layer_bytes`.
        longest: tokens of a full window.
        masked: fraction of tokens with a vocabulary head.
    """
    # Weight, gradient and two moments in fp32; a copy to compute with; sums of several ranks.
    states = 16 * sizes.parameters
    if half:
        states += 2 * sizes.blocks * sizes.layer
    if slots > 1:
        states += 4 * sizes.parameters

    # The backward pass of a layer has gradients in fp32 before and after a norm, one in half
    # precision, and one of the inner units; or, of scores, two in fp32.
    width = 2 if half else 4
    scores = score_bytes(sizes, half=half, longest=longest)
    working: float = (8 + width) * sizes.hidden + width * sizes.inner
    if scores:
        working = max(working, 8 * longest * sizes.heads - sizes.kept(half).inner * sizes.inner)

    layer = layer_bytes(sizes, half=half, grid=grid) + scores
    outside = sizes.kept(half).outside * sizes.hidden
    # Logits, their log-softmax in fp32, and its gradient.
    head = masked * sizes.vocabulary * (width + 8)
    per_token = sizes.layers * layer + outside + working + head

    # A weight's gradient is made apart, in fp32, and added. That of layers with common weights is
    # summed over them before: at the second layer all sums are there, and a layer's tokens gone.
    largest = 4 * sizes.hidden * sizes.inner
    later = [Peak(_moments_root(sizes.parameters))]
    if sizes.blocks < sizes.layers:
        later.append(Peak(2 * largest + 4 * sizes.layer, per_token - layer))
    return Memory(states=states, gathered=largest, head=0, per_token=per_token, later=tuple(later))


def _moments_root(parameters: float) -> float:
    """Return the bytes of what the optimizer's step allocates: the root of the second moments."""
    return 4 * parameters


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

    Args:
        sizes: of the model.
        shard: ranks that share the states of a tensor-parallel rank (FSDP).
        tensor: tensor-parallel ranks.
        half: whether products are in half precision.
        recomputed: fraction of the layers that run again in backward.
        grid: see `layer_bytes`.
    """
    width = 2 if half else 4
    split_parameters = (sizes.parameters - sizes.unsplit) / tensor
    states = 16 * (split_parameters + sizes.unsplit) / shard

    # FSDP gathers two layers at a time, and all that is outside of layers.
    head = sizes.vocabulary * sizes.hidden
    outside = sizes.parameters - sizes.layers * sizes.layer
    gathered = sizes.layer / tensor * (3 * width + 4) + outside * width + head / tensor * 8
    logits = HEAD_CHUNK * sizes.vocabulary / tensor * (width + 4)

    # Of recomputed layers the inputs are kept; as backward starts, the last one runs again.
    layer = layer_bytes(sizes, half=half, tensor=tensor, grid=grid)
    again = count_recomputed(sizes.layers, recomputed)
    kept_layers = sizes.layers - again
    if again:
        kept_layers += 1
    per_token: float = sizes.kept(half).outside * sizes.hidden
    per_token += again * width * sizes.hidden + kept_layers * layer
    return Memory(
        states=states,
        gathered=gathered,
        head=logits,
        per_token=per_token,
        later=(Peak(_moments_root(states / 16)),),
    )
