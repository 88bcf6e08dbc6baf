"""Starts processes of one gloo group, and trains tiny models in them."""

import copy
import multiprocessing
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from lm.gradients import accumulate, add_up, clip
from lm.initial import draw, record_rules
from lm.layout import Layout, make_mesh
from lm.model import build_model, empty_model
from lm.packed import CausalRow, pack

os.environ.setdefault("OMP_NUM_THREADS", "1")
# One process imports torch and the library, and each rank is a fork of it: no second import.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.lm.ranks"])

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


def start(check: Callable, ranks: int, folder: Path, *args: Any) -> list[Any]:
    """What `check(*args)` returns on each of `ranks` processes; a collective waits 60 s at most."""
    sys.audit("os.fork")  # forkserver itself raises no event here
    processes = [
        _context.Process(target=_rank, args=(check, rank, ranks, folder, args), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0] * ranks
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks)]


def _rank(check: Callable, rank: int, ranks: int, folder: Path, args: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), ranks)
    timeout = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
    torch.save(check(*args), folder / f"{rank}.pt")
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
    """A model and how it is trained."""

    family: str
    keys: dict[str, Any] = {}
    per_row: int = 8  # windows in a micro-batch
    checkpointing: bool = False
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
    """Each case, trained at `layout` by this process and its peers."""
    mesh = make_mesh(layout, CPU)
    return {name: _train(layout, mesh, case) for name, case in cases.items()}


def _train(layout: Layout, mesh: Any, case: Case) -> Trained:
    half = torch.bfloat16 if case.half else None
    config = tiny(case.family, **case.keys)
    model = build_model(config, mesh, 7, half=half, activation_checkpointing=case.checkpointing)
    initial = {name: whole(p) for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    mine, losses, gradients, norm = layout.data_rank(dist.get_rank()), [], {}, 0.0
    for step in range(case.steps):
        share = windows(step, case.batch)[mine :: layout.data_ranks]
        sums = add_up(accumulate(model, rows_of(share, case.per_row), layout), layout)
        losses.append(float(sums[0] / sums[2]))
        if step == 0:
            gradients = {name: whole(p.grad) for name, p in model.named_parameters()}
        norm = float(clip(model.parameters(), 1.0)) if step == 0 else norm
        optimizer.step()
        optimizer.zero_grad()
    return Trained(initial, gradients, norm, losses)


def reference(cases: dict[str, Case]) -> dict[str, Trained]:
    """The cases with the library's own model, attention, loss and norm, each document by itself."""
    return {name: _reference(case) for name, case in cases.items()}


def _reference(case: Case) -> Trained:
    config = tiny(case.family, **case.keys)
    meta = empty_model(copy.deepcopy(config))
    rules = record_rules(meta)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(draw(name, parameter, rules, 7))
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses, gradients, norm = [], {}, 0.0
    for step in range(case.steps):
        loss = documents_loss(model, windows(step, case.batch))
        loss.backward()
        losses.append(float(loss.detach()))
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
    return Trained(initial, gradients, norm, losses)


def documents_loss(model: Any, made: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean cross-entropy of the next token in each piece of each window, read by itself."""
    losses = []
    for tokens, pieces in made:
        for piece in tokens.split(pieces.tolist()):
            if len(piece) > 1:
                logits = model(piece[None, :-1]).logits[0].float()
                losses.append(
                    torch.nn.functional.cross_entropy(logits, piece[1:], reduction="none")
                )
    return torch.cat(losses).mean()
