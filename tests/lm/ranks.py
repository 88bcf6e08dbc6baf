"""Starts processes of one gloo group, and trains tiny models in them."""

import functools
import os
import pickle
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from lm.gradients import ShardedGradients, accumulate, add_up
from lm.layout import make_mesh
from lm.model import build_causal_model
from lm.packed import pack
from tests.zygote import start_zygote

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
_LLAMA = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 134,
    "max_position_embeddings": 64,
}
SHAPES = {
    "gpt2": {
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    },
    "gpt_neox": _LLAMA,
    "llama": {**_LLAMA, "num_key_value_heads": 2},
    "qwen2": {**_LLAMA, "num_key_value_heads": 2},
}
VOCABULARY = 257
CPU = torch.device("cpu")
SEED = 7  # of all initial weights


def tiny(family, **keys):
    """The config of a model of two narrow layers, without special tokens."""
    shape = {
        "vocab_size": VOCABULARY,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **SHAPES[family],
        **keys,
    }
    return AutoConfig.for_model(family, **shape)


@functools.lru_cache
def _python():
    return start_zygote(Path(tempfile.mkdtemp()))


def start(check, ranks, folder, *args):
    """What `check(*args)` returns on each of `ranks` processes; of 300 s at most."""
    job_folder = Path(tempfile.mkdtemp(dir=folder))
    (job_folder / "job").write_bytes(pickle.dumps((check, ranks, args)))
    command = [_python(), "-m", "tests.lm.ranks", str(job_folder)]
    processes = [subprocess.Popen([*command, str(rank)], cwd=ROOT) for rank in range(ranks)]
    try:
        statuses = [process.wait(500) for process in processes]
        assert statuses == [0] * ranks
    finally:
        for process in processes:
            process.kill()

    results = []
    for rank in range(ranks):
        results.append(torch.load(job_folder / f"{rank}.pt", weights_only=False))
    return results


def _rank(job_folder, rank):
    """Run the job of the folder as rank `rank` of its group, and leave the result there."""
    torch.set_num_threads(1)
    check, ranks, args = pickle.loads((job_folder / "job").read_bytes())
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(str(job_folder / "store"), ranks),
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=300),
    )
    torch.save(check(*args), job_folder / f"{rank}.pt")
    dist.destroy_process_group()


def windows(step, count, length=24):
    """`count` windows of `length` + 1 tokens, each of up to three segments of documents."""
    generator = torch.Generator().manual_seed(step)
    drawn = []
    for _ in range(count):
        tokens = torch.randint(VOCABULARY, (length + 1,), generator=generator)
        cuts = torch.randint(1, length, (2,), generator=generator)
        bounds = [0, *sorted(set(cuts.tolist())), length + 1]
        drawn.append((tokens, torch.tensor(bounds).diff()))
    return drawn


def rows_of(windows, per_row):
    """Pack windows into rows of `per_row` each; the last may have fewer."""
    rows = []
    for begin in range(0, len(windows), per_row):
        rows.append(pack(windows[begin : begin + per_row]))
    return rows


class Case(NamedTuple):
    """A model, how it is trained and for how long."""

    family: str
    keys: dict[str, Any] = {}
    per_row: int = 8  # windows in a micro-batch
    recomputed: float = 0.0
    batch: int = 8  # windows in a step
    steps: int = 3
    half: bool = False


class Trained(NamedTuple):
    """What a case computed."""

    initial: dict[str, Tensor]
    gradients: dict[str, Tensor]  # of the first step
    norm: float  # of these
    losses: list[float]


def whole(tensor):
    """A copy of the unsharded tensor, on every rank."""
    if isinstance(tensor, DTensor):
        tensor = tensor.full_tensor()
    return tensor.detach().clone()


def whole_parameters(model):
    """Copies of all parameters, unsharded, by name."""
    return {name: whole(parameter) for name, parameter in model.named_parameters()}


def train(layout, cases):
    """Train each case on this rank of the layout."""
    mesh = make_mesh(layout, CPU)
    return {name: _train(layout, mesh, case) for name, case in cases.items()}


def _train(layout, mesh, case):
    causal_loss = build_causal_model(
        tiny(case.family, **case.keys),
        mesh,
        SEED,
        half=torch.bfloat16 if case.half else None,
        recomputed=case.recomputed,
    )
    model = causal_loss.model
    data_rank = layout.data_rank(dist.get_rank())

    def compute_gradients(step):
        rank_windows = windows(step, case.batch)[data_rank :: layout.data_ranks]
        sums = accumulate(causal_loss, rows_of(rank_windows, case.per_row), layout)
        return add_up(sums, layout)

    def clip(_, norm):
        return ShardedGradients(model).clip(norm)

    return _train_steps(model, case, compute_gradients, clip)


def library_model(case):
    """The library's own model and attention, from the weights that ours begins with."""
    config = tiny(case.family, **case.keys)
    torch.manual_seed(SEED)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def reference(case):
    """The case with the library's model, loss and norm, each document by itself."""
    model = library_model(case)

    def compute_gradients(step):
        sums = documents_sums(model, windows(step, case.batch))
        (sums[0] / sums[2]).backward()
        return sums.detach()

    return _train_steps(model, case, compute_gradients, torch.nn.utils.clip_grad_norm_)


def _train_steps(model, case, compute_gradients, clip):
    """Train with AdamW; only the first step's gradients are kept, and clipped."""
    initial = whole_parameters(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    first_gradients = {}
    norm = 0.0
    for step in range(case.steps):
        sums = compute_gradients(step)
        losses.append(float(sums[0] / sums[2]))
        if step == 0:
            for name, parameter in model.named_parameters():
                first_gradients[name] = whole(parameter.grad)
            norm = float(clip(model.parameters(), 1.0))
        optimizer.step()
        optimizer.zero_grad()
    return Trained(initial=initial, gradients=first_gradients, norm=norm, losses=losses)


def documents_sums(model, windows):
    """Loss sum, correct predictions and targets of all windows, each segment read by itself."""
    sums = torch.zeros(3, dtype=torch.float64)
    for tokens, lengths in windows:
        for segment in tokens.split(lengths.tolist()):
            targets = segment[1:]
            if len(targets):
                logits = model(segment[None, :-1]).logits[0].float()
                loss = torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
                correct = (logits.argmax(1) == targets).sum()
                sums = sums + torch.stack([loss, correct, torch.tensor(len(targets))])
    return sums


if __name__ == "__main__":
    from tests.lm import ranks  # the module of what is pickled

    ranks._rank(Path(sys.argv[1]), int(sys.argv[2]))
