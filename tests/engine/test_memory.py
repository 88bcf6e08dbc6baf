"""Bytes on a GPU: by the planner's arithmetic, by hooks, by the tensors there are, as published."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import AutoConfig, AutoModelForQuestionAnswering, PretrainedConfig

from detalbert.engine import attention
from detalbert.engine.forward import Forward, dummy_row
from detalbert.engine.gradients import local_part
from detalbert.engine.memory import Sizes, layer_bytes, replicated, split
from lm.gradients import accumulate
from lm.hparams import Layout
from lm.layout import make_mesh
from lm.model import build_causal_model, causal_sizes
from lm.packed import pack
from tests.lm.ranks import CPU, rows_of, start, tiny, windows

Kept = Callable[[int, int], int]  # (layers, tokens) -> bytes


def kept_bytes(forward: Callable[[], Any]) -> int:
    storages = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in storages.values())


def slope(kept: Kept) -> float:
    """Bytes a token and layer: what does not depend on both goes out by subtraction."""
    return (kept(4, 256) - kept(2, 256) - kept(4, 128) + kept(2, 128)) / (2 * 128)


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One output of attention, as of CUDA's kernel; on a CPU each window has its own, and they are
    joined. Under autocast norms are fp32 on CUDA, and half precision on a CPU. The group of one
    that `make_mesh` makes ends with the test."""
    plain = F.layer_norm

    def kernel(query: Any, key: Any, value: Any, layout: Any, options: Any) -> Any:
        keys = {"is_causal": options.causal, "scale": options.scaling}
        return F.scaled_dot_product_attention(query, key, value, **keys).transpose(1, 2)

    def norm(x: torch.Tensor, *shape: Any) -> torch.Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return plain(x, *shape)
        with torch.autocast("cpu", enabled=False):
            return plain(x.float(), *shape)

    monkeypatch.setattr(attention, "_without_kernel", kernel)
    monkeypatch.setattr(F, "layer_norm", norm)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def causal(family: str, half: bool, recomputed: float, layers: int, tokens: int) -> int:
    name = "n_layer" if family == "gpt2" else "num_hidden_layers"
    positions = {"n_positions" if family == "gpt2" else "max_position_embeddings": 256}
    config = tiny(family, **{name: layers}, **positions)
    dtype = torch.bfloat16 if half else None
    mesh = make_mesh(Layout(), CPU)
    causal_loss = build_causal_model(config, mesh, 0, half=dtype, recomputed=recomputed)
    row = pack([(torch.zeros(tokens + 1, dtype=torch.long), torch.tensor([tokens + 1]))])
    return kept_bytes(lambda: causal_loss(row))


@pytest.mark.parametrize("half", [True, False], ids=["half", "fp32"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox", "gpt2"])
def test_a_causal_layer_keeps_what_the_hooks_see(family: str, half: bool) -> None:
    sizes = causal_sizes(tiny(family))
    shares = 0.0, 0.5, 1.0  # of the layers: activation checkpointing
    whole, some, inputs = (slope(functools.partial(causal, family, half, x)) for x in shares)
    assert layer_bytes(sizes, half) == pytest.approx(whole, rel=0.01)
    assert inputs == (2 if half else 4) * sizes.hidden and some == (whole + inputs) / 2
    for share, kept in zip(shares, (whole, some, inputs), strict=True):
        two, four = (
            split(sizes._replace(layers=n), 1, 1, half, share, False).per_token for n in (2, 4)
        )
        assert four - two == pytest.approx(2 * kept, rel=0.01)


def encoder(family: str, dropout: float = 0.0, layers: int = 12) -> PretrainedConfig:
    names = "num_hidden_layers hidden_size num_attention_heads intermediate_size"
    names += " hidden_dropout_prob attention_probs_dropout_prob classifier_dropout_prob"
    if family == "distilbert":
        names = "n_layers dim n_heads hidden_dim dropout attention_dropout qa_dropout"
    shape = dict(zip(names.split(), (layers, 64, 4, 192, dropout, 0.0, 0.0), strict=True))
    return AutoConfig.for_model(family, vocab_size=128, max_position_embeddings=300, **shape)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("family", ["albert", "bert", "distilbert"])
def test_an_encoder_s_layer_keeps_what_the_hooks_see(
    family: str, precision: str, dropout: float
) -> None:
    make = AutoModelForQuestionAnswering.from_config

    def kept(layers: int, tokens: int) -> int:
        model = make(encoder(family, dropout, layers), attn_implementation=attention.PACKED)
        forward = Forward(model.train(), precision, CPU, compiled=False)
        forward.refresh()
        return kept_bytes(lambda: forward(dummy_row(tokens, tokens, CPU)))

    sizes = Sizes.of(encoder(family, dropout), 0)
    assert layer_bytes(sizes, precision == "bf16") == pytest.approx(slope(kept), rel=0.01)
    sizes = Sizes.of(encoder("bert"), 0)
    grid = layer_bytes(sizes, True, grid=True)  # keeps more
    assert grid - layer_bytes(sizes, True) == pytest.approx(2 * 64 * (4 * 2.2 - 3))
    assert layer_bytes(sizes._replace(padded=True), True) == grid


WIDE = {"hidden_size": 128, "intermediate_size": 256}
SPLITS = [(Layout(1, 4, 1), "llama"), (Layout(1, 2, 2), "gpt_neox"), (Layout(2, 2, 1), "llama")]


def states() -> list[int]:
    found = []
    for layout, family in SPLITS:
        causal_loss = build_causal_model(tiny(family, **WIDE), make_mesh(layout, CPU), 0)
        model = causal_loss.model
        optimizer = torch.optim.AdamW(model.parameters())
        share = windows(0, 4)[layout.data_rank(dist.get_rank()) :: layout.data_ranks]
        accumulate(causal_loss, rows_of(share, 4), layout)
        optimizer.step()
        moments = [v for s in optimizer.state.values() for v in s.values() if v.ndim]
        tensors = [*model.parameters(), *(p.grad for p in model.parameters()), *moments]
        found.append(sum(local_part(tensor).nbytes for tensor in tensors))
    return found


def test_states_are_the_tensors_of_four_processes(tmp_path: Path, fork: None) -> None:
    measured = start(states, 4, tmp_path)
    for (layout, family), found in zip(SPLITS, zip(*measured, strict=True), strict=True):
        sizes = causal_sizes(tiny(family, **WIDE))
        planned = split(sizes, layout.shard, layout.tensor, False, False, False).states
        assert planned == pytest.approx(sum(found) / 4, rel=0.01), (layout, family)


# llm-foundry, scripts/train/benchmarking/README.md (commit 8c8dd48), 2,048 tokens, 8 GPUs, no
# activation checkpointing: (layers, h, heads, parameters) of its MPT models, of the same products
# as GPT-NeoX; its micro-batches on A100 of 40 GB ("PURE": all states in bf16) and of 80 GB.
FOUNDRY = [
    (12, 768, 12, 125_311_488, 26, 40), (24, 1024, 16, 355_985_408, 16, 32),
    (24, 1536, 12, 760_470_528, 12, 24), (24, 2048, 16, 1_315_950_592, 8, 14),
    (32, 2560, 20, 2_651_837_440, 5, 10), (32, 4096, 32, 6_658_859_008, None, 6),
    (40, 5120, 40, 12_853_954_560, None, 2),
]  # fmt: skip
# fms-fsdp, README.md (commit 6dc80d2): Llama 2, 4,096 tokens, A100 of 80 GB, 8 shards a copy.
FMS = [(32, 4096, 11008, 32, 6_738_415_616, 2), (40, 5120, 13824, 40, 13_015_864_320, 1)]


def whole_logits(sizes: Sizes) -> Any:
    """As these train: the logits of all tokens in bf16, and with their gradient in fp32."""
    memory = split(sizes, 8, 1, True, False, False)
    return memory._replace(head=0, per_token=memory.per_token + 10 * sizes.vocabulary)


def test_published_micro_batches() -> None:
    for layers, h, heads, parameters, small, large in FOUNDRY:
        layer = 12 * h * h
        sizes = Sizes("gpt_neox", h, 4 * h, layers, heads, 50_368, parameters, layer)
        memory = whole_logits(sizes)
        assert memory.tokens(80) // 2048 == pytest.approx(large, rel=0.25)
        if small is not None:  # sums of gradients are in bf16 too
            gathered = memory.gathered - 2 * layer - 4 * 50_368 * h
            pure = memory._replace(states=memory.states / 2, gathered=gathered)
            assert pure.tokens(40) // 2048 == pytest.approx(small, rel=0.25)
    for layers, h, f, heads, parameters, batch in FMS:
        layer = 4 * h * h + 3 * h * f
        sizes = Sizes("llama", h, f, layers, heads, 32_000, parameters, layer)
        assert whole_logits(sizes).tokens(80) // 4096 == pytest.approx(batch, rel=0.25)


def test_measured_on_an_h100() -> None:
    """benchmarks/results/step-h100.json: the peak of albert-xxlarge with rows of 4,096 tokens, its
    layers compiled."""
    sizes = Sizes("albert", 4096, 16_384, 12, 64, 30_000, 206_000_000)
    memory = replicated(sizes, 1, True, False)
    assert memory.states + 4096 * memory.per_token == pytest.approx(12_378_132_992, rel=0.1)
    # Several ranks keep another copy of the gradients.
    assert replicated(sizes, 8, True, False).states - memory.states == 4 * sizes.parameters
    # A vocabulary head keeps 12 bytes a logit in fp32.
    some, none = (replicated(sizes, 1, False, False, masked).per_token for masked in (0.15, 0.0))
    assert some - none == pytest.approx(0.15 * 30_000 * 12)
    # It is a line in the tokens.
    memory = split(causal_sizes(tiny("llama")), 2, 1, True, False, False)
    most = memory.tokens(16)
    assert memory.at(most) <= 16 * 2**30 * 0.95 < memory.at(most + 1)
    assert memory.tokens(1) < 0  # the overhead alone is more
