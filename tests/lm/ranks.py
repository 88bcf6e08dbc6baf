"""Starts processes of one gloo group, and trains tiny models in them."""

import copy
import functools
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from lm.gradients import ShardedGradients, accumulate, add_up
from lm.hparams import Layout
from lm.initial import draw, record_rules
from lm.layout import make_mesh
from lm.model import build_causal_model, empty_model
from lm.packed import CausalRow, pack
from tests.zygote import start_zygote

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
_LLAMA = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA |= {"intermediate_size": 134, "max_position_embeddings": 64}
SHAPES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    | dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
    "gpt_neox": _LLAMA,
    "llama": {**_LLAMA, "num_key_value_heads": 2},
    "qwen2": {**_LLAMA, "num_key_value_heads": 2},
}
VOCABULARY = 257
CPU = torch.device("cpu")


def tiny(family: str, **keys: Any) -> PretrainedConfig:
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    shape = {"vocab_size": VOCABULARY, **special, **SHAPES[family], **keys}
    return AutoConfig.for_model(family, **shape)


@functools.lru_cache
def _python() -> str:
    return start_zygote(Path(tempfile.mkdtemp()))


def start(check: Callable, ranks: int, folder: Path, *args: Any) -> list[Any]:
    """What `check(*args)` returns on each of `ranks` processes; a collective waits 60 s at most."""
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "job").write_bytes(pickle.dumps((check, ranks, args)))
    command = [_python(), "-m", "tests.lm.ranks", str(place)]
    processes = [subprocess.Popen([*command, str(rank)], cwd=ROOT) for rank in range(ranks)]
    try:
        assert [process.wait(240) for process in processes] == [0] * ranks
    finally:
        for process in processes:
            process.kill()
    return [torch.load(place / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def _rank(place: Path, rank: int) -> None:
    torch.set_num_threads(1)
    check, ranks, args = pickle.loads((place / "job").read_bytes())
    store = dist.FileStore(str(place / "store"), ranks)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
    torch.save(check(*args), place / f"{rank}.pt")
    dist.destroy_process_group()


def windows(step: int, count: int, length: int = 24) -> list[tuple[Tensor, Tensor]]:
    """`count` windows of `length` + 1 tokens, each of up to three pieces of documents."""
    generator = torch.Generator().manual_seed(step)
    made = []
    for _ in range(count):
        tokens = torch.randint(VOCABULARY, (length + 1,), generator=generator)
        cuts = torch.randint(1, length, (2,), generator=generator).unique().sort().values
        bounds = torch.cat([torch.tensor([0]), cuts, torch.tensor([length + 1])])
        made.append((tokens, bounds.diff()))
    return made


def rows_of(share: list, per_row: int) -> list[CausalRow]:
    return [pack(share[i : i + per_row]) for i in range(0, len(share), per_row)]


class Case(NamedTuple):
    family: str
    keys: dict[str, Any] = {}
    per_row: int = 8  # windows in a micro-batch
    recomputed: float = 0.0
    batch: int = 8  # windows in a step
    steps: int = 3
    half: bool = False


class Trained(NamedTuple):
    initial: dict[str, Tensor]
    gradients: dict[str, Tensor]  # of the first step
    norm: float  # of these
    losses: list[float]


def whole(tensor: Tensor) -> Tensor:
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().clone()


def train(layout: Layout, cases: dict[str, Case]) -> dict[str, Trained]:
    mesh = make_mesh(layout, CPU)
    return {name: _train(layout, mesh, case) for name, case in cases.items()}


def _train(layout: Layout, mesh: Any, case: Case) -> Trained:
    half = torch.bfloat16 if case.half else None
    config = tiny(case.family, **case.keys)
    causal_loss = build_causal_model(config, mesh, 7, half=half, recomputed=case.recomputed)
    model = causal_loss.model
    mine = layout.data_rank(dist.get_rank())

    def gradients(step: int) -> Tensor:
        share = windows(step, case.batch)[mine :: layout.data_ranks]
        return add_up(accumulate(causal_loss, rows_of(share, case.per_row), layout), layout)

    return _steps(model, case, gradients, lambda _, norm: ShardedGradients(model).clip(norm))


def library_model(case: Case) -> PreTrainedModel:
    """The library's own model and attention, from the weights that ours begins with."""
    config = tiny(case.family, **case.keys)
    rules = record_rules(empty_model(copy.deepcopy(config)))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, parameter, rules, 7))
    return model


def reference(case: Case) -> Trained:
    """The case with the library's model, loss and norm, each document by itself."""
    model = library_model(case)

    def gradients(step: int) -> Tensor:
        sums = documents_sums(model, windows(step, case.batch))
        (sums[0] / sums[2]).backward()
        return sums.detach()

    return _steps(model, case, gradients, torch.nn.utils.clip_grad_norm_)


def _steps(model: Any, case: Case, gradients: Callable, clip: Callable) -> Trained:
    initial = {name: whole(p) for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses: list[float] = []
    first, norm = {}, 0.0
    for step in range(case.steps):
        sums = gradients(step)
        losses.append(float(sums[0] / sums[2]))
        if step == 0:
            first = {name: whole(p.grad) for name, p in model.named_parameters()}
            norm = float(clip(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
    return Trained(initial, first, norm, losses)


def documents_sums(model: Any, made: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Loss sum, right guesses and targets of each piece of each window, read by itself."""
    sums = torch.zeros(3, dtype=torch.float64)
    for tokens, pieces in made:
        for piece in tokens.split(pieces.tolist()):
            if len(piece) > 1:
                logits = model(piece[None, :-1]).logits[0].float()
                loss = torch.nn.functional.cross_entropy(logits, piece[1:], reduction="sum")
                hits = (logits.argmax(1) == piece[1:]).sum()
                sums = sums + torch.stack([loss, hits, torch.tensor(len(piece) - 1)])
    return sums


if __name__ == "__main__":
    from tests.lm import ranks  # the module of what is pickled

    ranks._rank(Path(sys.argv[1]), int(sys.argv[2]))
