"""Bytes on a GPU: by the planner's arithmetic, by hooks, by the tensors there are, as published."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoConfig, AutoModelForQuestionAnswering, PretrainedConfig

from detalbert.engine.forward import Forward, dummy_row
from detalbert.engine.gradients import local_part
from detalbert.engine.memory import (
    OVERHEAD,
    Memory,
    Sizes,
    layer_bytes,
    replicated,
    score_bytes,
    split,
)
from detalbert.engine.padded import attention_of
from lm.gradients import accumulate
from lm.hparams import Layout
from lm.layout import make_mesh
from lm.model import build_causal_model, causal_sizes
from lm.packed import pack
from tests.engine.gpu_kernels import use_gpu_kernels
from tests.lm.ranks import CPU, SEED, rows_of, start, tiny, windows

SavedBytes = Callable[[int, int], int]  # by the numbers of layers and tokens


def saved_bytes(forward: Callable[[], Any]) -> int:
    """Bytes that autograd keeps of a forward, by hooks."""
    storages = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in storages.values())


def per_token_and_layer(saved: SavedBytes) -> float:
    """Bytes a token and layer: what does not depend on both goes out by subtraction."""
    two_layers = saved(4, 256) - saved(2, 256)
    half_the_tokens = saved(4, 128) - saved(2, 128)
    return (two_layers - half_the_tokens) / (2 * 128)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The group of one that `make_mesh` makes ends with the test."""
    use_gpu_kernels(monkeypatch)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def causal_saved_bytes(family: str, half: bool, recomputed: float) -> SavedBytes:
    def saved(layers: int, tokens: int) -> int:
        keys = {"num_hidden_layers": layers, "max_position_embeddings": 256}
        if family == "gpt2":
            keys = {"n_layer": layers, "n_positions": 256}
        causal_loss = build_causal_model(
            tiny(family, **keys),
            make_mesh(Layout(), CPU),
            seed=0,
            half=torch.bfloat16 if half else None,
            recomputed=recomputed,
        )
        window = torch.zeros(tokens + 1, dtype=torch.long)
        row = pack([(window, torch.tensor([tokens + 1]))])
        return saved_bytes(lambda: causal_loss(row))

    return saved


@pytest.mark.parametrize("half", [True, False], ids=["half", "fp32"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox", "gpt2"])
def test_a_causal_layer_keeps_what_the_hooks_see(family: str, half: bool) -> None:
    sizes = causal_sizes(tiny(family))
    # By the fraction of the layers with activation checkpointing.
    measured = {
        fraction: per_token_and_layer(causal_saved_bytes(family, half, fraction))
        for fraction in (0.0, 0.5, 1.0)
    }
    assert layer_bytes(sizes, half) == pytest.approx(measured[0.0], rel=0.01)
    assert measured[1.0] == (2 if half else 4) * sizes.hidden  # the inputs alone
    assert measured[0.5] == (measured[0.0] + measured[1.0]) / 2

    for fraction, layer in measured.items():

        def per_token(layers: int, recomputed: float = fraction) -> float:
            memory = split(
                sizes._replace(layers=layers),
                shard=1,
                tensor=1,
                half=half,
                recomputed=recomputed,
                grid=False,
            )
            return memory.per_token

        assert per_token(4) - per_token(2) == pytest.approx(2 * layer, rel=0.01)


SCORED: dict[str, dict[str, Any]] = {
    "mpnet": {},
    "deberta-v2": {
        "relative_attention": True,
        "position_buckets": 16,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
    },
}
LONGEST = 64  # tokens of a window


def encoder_config(family: str, dropout: float = 0.0, layers: int = 12) -> PretrainedConfig:
    """The same shape, under the names of each family; attention drops weights out in DeBERTa and
    MPNet alone, which have them in memory."""
    shape = {
        "num_hidden_layers": layers,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 192,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
    }
    if family == "distilbert":
        shape = {
            "n_layers": layers,
            "dim": 64,
            "n_heads": 4,
            "hidden_dim": 192,
            "dropout": dropout,
            "attention_dropout": 0.0,
            "qa_dropout": 0.0,
        }
    if family == "modernbert":  # whose own dropouts are 0
        for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            del shape[name]
        del shape["classifier_dropout_prob"]
        shape |= {"pad_token_id": 0, "layer_types": ["full_attention"] * layers}
    if family in SCORED:
        del shape["classifier_dropout_prob"]
        shape |= {"attention_probs_dropout_prob": dropout, **SCORED[family]}
    return AutoConfig.for_model(family, vocab_size=128, max_position_embeddings=300, **shape)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "modernbert", *SCORED])
def test_an_encoder_s_layer_keeps_what_the_hooks_see(
    family: str, precision: str, dropout: float
) -> None:
    def saved(layers: int, tokens: int) -> int:
        config = encoder_config(family, dropout, layers)
        model = AutoModelForQuestionAnswering.from_config(
            config, attn_implementation=attention_of(config)
        )
        forward = Forward(model.train(), precision, CPU, compiled=False)
        forward.refresh()
        return saved_bytes(lambda: forward(dummy_row(tokens, LONGEST, CPU)))

    sizes = Sizes.of(encoder_config(family, dropout), 0)
    half = precision == "bf16"
    estimate = layer_bytes(sizes, half) + score_bytes(sizes, half, LONGEST)
    assert estimate == pytest.approx(per_token_and_layer(saved), rel=0.01)


def test_a_padded_grid_keeps_more() -> None:
    sizes = Sizes.of(encoder_config("bert"), 0)
    grid = layer_bytes(sizes, True, grid=True)
    assert grid - layer_bytes(sizes, True) == pytest.approx(2 * 64 * (4 * 2.2 - 3))
    assert layer_bytes(sizes._replace(padded=True), True) == grid


WIDE = {"hidden_size": 128, "intermediate_size": 256}
SPLITS = [
    (Layout(shard=4), "llama"),
    (Layout(shard=2, tensor=2), "gpt_neox"),
    (Layout(replicate=2, shard=2), "llama"),
]


def measure_states() -> list[int]:
    """Bytes of this rank's parameters, gradients and moments, for each of SPLITS."""
    measured = []
    for layout, family in SPLITS:
        causal_loss = build_causal_model(tiny(family, **WIDE), make_mesh(layout, CPU), SEED)
        model = causal_loss.model
        optimizer = torch.optim.AdamW(model.parameters())
        data_rank = layout.data_rank(dist.get_rank())
        rank_windows = windows(0, 4)[data_rank :: layout.data_ranks]
        accumulate(causal_loss, rows_of(rank_windows, 4), layout)
        optimizer.step()

        tensors = []
        for parameter in model.parameters():
            state = optimizer.state[parameter]
            tensors += [parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]]
        measured.append(sum(local_part(tensor).nbytes for tensor in tensors))
    return measured


def test_states_are_the_tensors_of_four_processes(tmp_path: Path, fork: None) -> None:
    ranks = 4
    measured = start(measure_states, ranks, tmp_path)
    for number, (layout, family) in enumerate(SPLITS):
        rank_bytes = [rank[number] for rank in measured]
        memory = split(
            causal_sizes(tiny(family, **WIDE)),
            shard=layout.shard,
            tensor=layout.tensor,
            half=False,
            recomputed=0.0,
            grid=False,
        )
        mean = sum(rank_bytes) / ranks
        assert memory.states == pytest.approx(mean, rel=0.01), (layout, family)


class Published(NamedTuple):
    """A model that somebody trained on 8 GPUs, and its largest micro-batch."""

    layers: int
    hidden: int
    inner: int
    heads: int
    parameters: int
    micro_batch: int  # on A100 of 80 GB
    pure: int | None = None  # on A100 of 40 GB, all states in bf16


# llm-foundry, scripts/train/benchmarking/README.md (commit 8c8dd48), 2,048 tokens, no activation
# checkpointing: its MPT models, of the same products as GPT-NeoX.
FOUNDRY = [
    Published(12, 768, 3072, 12, 125_311_488, 40, pure=26),
    Published(24, 1024, 4096, 16, 355_985_408, 32, pure=16),
    Published(24, 1536, 6144, 12, 760_470_528, 24, pure=12),
    Published(24, 2048, 8192, 16, 1_315_950_592, 14, pure=8),
    Published(32, 2560, 10_240, 20, 2_651_837_440, 10, pure=5),
    Published(32, 4096, 16_384, 32, 6_658_859_008, 6),
    Published(40, 5120, 20_480, 40, 12_853_954_560, 2),
]
# fms-fsdp, README.md (commit 6dc80d2): Llama 2, 4,096 tokens, 8 shards a copy.
FMS = [
    Published(32, 4096, 11_008, 32, 6_738_415_616, 2),
    Published(40, 5120, 13_824, 40, 13_015_864_320, 1),
]


def sizes_of(model: Published, family: str, vocabulary: int, layer: int) -> Sizes:
    return Sizes(
        family,
        hidden=model.hidden,
        inner=model.inner,
        layers=model.layers,
        heads=model.heads,
        vocabulary=vocabulary,
        parameters=model.parameters,
        layer=layer,
    )


def memory_with_all_logits(sizes: Sizes) -> Memory:
    """As these train: the logits of all tokens in bf16, and with their gradient in fp32."""
    memory = split(sizes, shard=8, tensor=1, half=True, recomputed=0.0, grid=False)
    return memory._replace(head=0, per_token=memory.per_token + 10 * sizes.vocabulary)


@pytest.mark.parametrize("model", FOUNDRY)
def test_micro_batches_of_llm_foundry(model: Published) -> None:
    layer = 12 * model.hidden**2
    sizes = sizes_of(model, "gpt_neox", vocabulary=50_368, layer=layer)
    memory = memory_with_all_logits(sizes)
    assert memory.tokens(80) // 2048 == pytest.approx(model.micro_batch, rel=0.25)

    if model.pure is not None:  # sums of gradients are in bf16 too
        gathered = memory.gathered - 2 * layer - 4 * sizes.vocabulary * model.hidden
        pure = memory._replace(states=memory.states / 2, gathered=gathered)
        assert pure.tokens(40) // 2048 == pytest.approx(model.pure, rel=0.25)


@pytest.mark.parametrize("model", FMS)
def test_micro_batches_of_fms_fsdp(model: Published) -> None:
    layer = 4 * model.hidden**2 + 3 * model.hidden * model.inner
    sizes = sizes_of(model, "llama", vocabulary=32_000, layer=layer)
    tokens = memory_with_all_logits(sizes).tokens(80)
    assert tokens // 4096 == pytest.approx(model.micro_batch, rel=0.25)


XXLARGE = Sizes(
    "albert",
    hidden=4096,
    inner=16_384,
    layers=12,
    heads=64,
    vocabulary=30_000,
    parameters=205_822_466,
    layer=201_379_840,
    blocks=1,
)


def test_measured_on_an_h100() -> None:
    """benchmarks/results/step-h100.json: the peak of albert-xxlarge with rows of 4,096 tokens, its
    layers compiled."""
    memory = replicated(XXLARGE, slots=1, half=True, grid=False, longest=384)
    peak = memory.at(4096) - OVERHEAD
    assert peak == pytest.approx(12_378_132_992, rel=0.1)


def test_several_ranks_keep_another_copy_of_the_gradients() -> None:
    single = replicated(XXLARGE, slots=1, half=True, grid=False, longest=384)
    eight = replicated(XXLARGE, slots=8, half=True, grid=False, longest=384)
    assert eight.states - single.states == 4 * XXLARGE.parameters


def test_a_vocabulary_head_keeps_12_bytes_a_logit_in_fp32() -> None:
    without = replicated(XXLARGE, slots=1, half=False, grid=False, longest=384)
    masked = replicated(XXLARGE, slots=1, half=False, grid=False, longest=384, masked=0.15)
    assert masked.per_token - without.per_token == pytest.approx(0.15 * 30_000 * 12)


def test_memory_is_a_line_in_the_tokens() -> None:
    sizes = causal_sizes(tiny("llama"))
    memory = split(sizes, shard=2, tensor=1, half=True, recomputed=0.0, grid=False)
    tokens = memory.tokens(16)
    usable = 16 * 2**30 * 0.95
    assert memory.at(tokens) <= usable < memory.at(tokens + 1)
    assert memory.tokens(1) == 0  # the overhead alone is more
