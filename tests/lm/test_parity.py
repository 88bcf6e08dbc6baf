"""The same at every layout: training, validation, checkpoints of another; fp16's loss scaling."""

import contextlib
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict as parts
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from detalbert.engine import optim
from detalbert.engine.gradients import local_part
from detalbert.errors import UserError
from detalbert.training.parts import TensorSaver, load_tensors
from detalbert.training.workload import is_sharded
from lm.gradients import ShardedGradients, accumulate, add_up, evaluate
from lm.hparams import Layout
from lm.layout import make_mesh
from lm.model import build_causal_model
from lm.trial import LmTrial
from tests.conftest import SOAK
from tests.lm import ranks
from tests.lm.ranks import CPU, SEED, Case, rows_of, start, tiny, whole, whole_parameters, windows

pytestmark = pytest.mark.usefixtures("fork")

ONE = Layout()
TWO = Layout(shard=2)
FOUR = Layout(shard=4)
BOTH = Layout(shard=2, tensor=2)
COPIES = Layout(replicate=2, shard=2)


class Job:
    """A tiny Llama with AdamW on this rank of a layout."""

    def __init__(self, layout, seed, tied):
        self.layout = layout
        config = tiny("llama", tie_word_embeddings=tied)
        self.causal_loss = build_causal_model(config, make_mesh(layout, CPU), seed)
        self.model = self.causal_loss.model
        # Each layer is gathered alone.
        for layer in self.model.model.layers:
            assert isinstance(layer, FSDPModule) == (layout.shard > 1)
        groups = optim.parameter_groups(self.model, 0.1)
        self.optimizer = optim.build_optimizer("adamw", groups, 3e-3)

    def step(self, number):
        """The loss of a step, which it trains on."""
        data_rank = self.layout.data_rank(dist.get_rank())
        rank_windows = windows(number, 7)[data_rank :: self.layout.data_ranks]
        sums = accumulate(self.causal_loss, rows_of(rank_windows, 4), self.layout)
        sums = add_up(sums, self.layout)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(sums[0] / sums[2])

    def state(self):
        """All parameters and moments, unsharded."""
        tensors = whole_parameters(self.model)
        optimizer_state = parts.get_optimizer_state_dict(self.model, self.optimizer)["state"]
        for name, moments in optimizer_state.items():
            for key, moment in moments.items():
                tensors[f"{name}.{key}"] = whole(moment)
        return tensors


class Run(NamedTuple):
    """A run whose checkpoint lies in a folder of its name, and the layouts that read it."""

    layout: Layout
    tied: bool
    readers: list[Layout]


RUNS = {
    "4": Run(FOUR, tied=False, readers=[TWO, BOTH]),
    "2": Run(TWO, tied=True, readers=[FOUR]),
    "2 x 2": Run(BOTH, tied=True, readers=[FOUR, ONE]),
    "copies": Run(COPIES, tied=False, readers=[TWO, ONE]),  # a machine lost
}


class State(NamedTuple):
    """What a checkpoint holds, and the losses of the two steps after it."""

    tensors: dict[str, Tensor]
    losses: list[float]


def state_and_losses(job):
    return State(tensors=job.state(), losses=[job.step(1), job.step(2)])


def write(slots, folder):
    """Train each run of so many slots for a step, and save it."""
    states = {}
    for name, run in RUNS.items():
        if run.layout.slots == slots:
            job = Job(run.layout, SEED, run.tied)
            checkpoint = folder / name
            checkpoint.mkdir(exist_ok=True)
            TensorSaver().save(checkpoint, job.model, job.optimizer)()
            load_tensors(checkpoint, job.model, None)
            assert not job.optimizer.state  # it took no step, and counts none
            job.step(0)
            TensorSaver().save(checkpoint, job.model, job.optimizer)()
            states[name] = state_and_losses(job)
    return states


def read(slots, folder):
    """Load each checkpoint that is there already into other weights."""
    states = []
    for name, run in RUNS.items():
        for layout in run.readers:
            if layout.slots == slots and is_sharded(folder / name):
                job = Job(layout, SEED + 1, run.tied)
                load_tensors(folder / name, job.model, job.optimizer)
                states.append((name, state_and_losses(job)))
    return states


# Of 5 windows in rows of one some rank has fewer rows than another, and of 3 on 4 one has none.
CASES = {
    "llama": Case("llama", steps=6),
    "llama, tied": Case("llama", {"tie_word_embeddings": True}, per_row=1, batch=5),
    "gpt_neox": Case("gpt_neox", per_row=1, batch=3),
    "qwen2, checkpointed": Case("qwen2", recomputed=0.5),
    "gpt2": Case("gpt2"),
}
LAYOUTS = {1: [ONE], 2: [Layout(tensor=2)], 4: [BOTH, COPIES] + [FOUR] * (SOAK > 1)}
SIZES = [1, 3, 6]  # windows of validation sets: fewer than ranks, too


def cases_of(layout):
    left_out = set()
    if layout.tensor > 1:
        left_out.add("gpt2")  # it has no tensor-parallel plan
    if layout == BOTH:
        left_out.add("qwen2")
    if layout == FOUR:
        left_out |= {"gpt_neox", "qwen2", "gpt2"}  # COPIES has all
    return {name: case for name, case in CASES.items() if case.family not in left_out}


class Validated(NamedTuple):
    """The sums of each set of windows, and how many numbers this rank holds of the model."""

    sums: Tensor  # [sets, 3]
    numbers: int


def validate(layout):
    """Validate; check all else that a validation or a save must leave as it is."""
    mesh = make_mesh(layout, CPU)
    causal_loss = build_causal_model(tiny("llama"), mesh, SEED)
    model = causal_loss.model
    parameters = list(model.parameters())
    data_rank = layout.data_rank(dist.get_rank())

    sums = []
    for size in SIZES:
        rank_windows = windows(9, size)[data_rank :: layout.data_ranks]
        sums.append(evaluate(causal_loss, rows_of(rank_windows, 1), layout))
    assert model.training
    sharded = layout.slots > 1  # a single process has plain tensors
    assert all(isinstance(parameter, DTensor) == sharded for parameter in parameters)
    for before, after in zip(parameters, model.parameters(), strict=True):
        assert before is after

    check_save_by_determined(layout, causal_loss)
    check_clipping(layout, causal_loss)
    numbers = sum(local_part(parameter).numel() for parameter in parameters)
    return Validated(torch.stack(sums), numbers)


def check_save_by_determined(layout, causal_loss):
    """Determined's own loop would save rank 0's shard alone."""
    trial = SimpleNamespace(model=causal_loss.model)
    sharded = layout.shard * layout.tensor > 1
    refused = pytest.raises(UserError, match="would be saved in part")
    with refused if sharded else contextlib.nullcontext():
        LmTrial.on_checkpoint_save_start(trial, {})


def check_clipping(layout, causal_loss):
    accumulate(causal_loss, rows_of(windows(0, 2), 1), layout)
    gradients = ShardedGradients(causal_loss.model)
    assert float(gradients.clip(0.01)) > 0.02
    assert float(gradients.clip(0.01)) == pytest.approx(0.01, rel=1e-3)
    # As torch's clip_grad_norm_: the limit is divided by the norm and 1e-6.
    gradients.clip(1e-6)
    gradients.clip(1e-6)
    assert float(gradients.clip(0.0)) == pytest.approx(5e-7, rel=1e-3)


class Results(NamedTuple):
    """What a rank computed at some number of slots."""

    trained: list[dict[str, ranks.Trained]]  # by layout
    validated: list[Validated]  # by layout
    written: dict[str, State]
    read: list[tuple[str, State]]


def check_slots(slots, folder, first):
    """Processes are started four times only: the first steps of each take long."""
    layouts = LAYOUTS[slots] if first else []
    trained = []
    validated = []
    for layout in layouts:
        trained.append(ranks.train(layout, cases_of(layout)))
        validated.append(validate(layout))
    return Results(
        trained=trained,
        validated=validated,
        written=write(slots, folder) if first else {},
        read=read(slots, folder),
    )


def test_a_layout_trains_as_the_library_does_and_reads_what_another_wrote(tmp_path):
    expected = {name: ranks.reference(case) for name, case in CASES.items()}
    written = {}
    loaded = []

    # Two slots once more: they read what four wrote.
    for slots, first in ((2, True), (4, True), (2, False), (1, True)):
        results = start(check_slots, slots, tmp_path, slots, tmp_path, first)
        layouts = LAYOUTS[slots] if first else []
        for number, layout in enumerate(layouts):
            for name in cases_of(layout):
                on_ranks = [result.trained[number][name] for result in results]
                check_training(on_ranks, expected[name])
            check_validation([result.validated[number] for result in results], layout)
        written |= results[0].written
        loaded += results[0].read

    assert len(loaded) == sum(len(run.readers) for run in RUNS.values())
    for name, state in loaded:
        saved = written[name]
        assert state.tensors.keys() == saved.tensors.keys()
        assert len(saved.tensors) > 60
        for key, tensor in saved.tensors.items():
            assert torch.equal(state.tensors[key], tensor)
        assert state.losses == pytest.approx(saved.losses, abs=1e-5)


def check_training(on_ranks, expected):
    """All ranks trained alike, and as transformers' own model."""
    ours = on_ranks[0]
    assert ours.initial.keys() == ours.gradients.keys() == expected.gradients.keys()
    for name, weight in expected.initial.items():
        assert torch.equal(ours.initial[name], weight), name
    for name, gradient in expected.gradients.items():
        difference = ours.gradients[name] - gradient
        assert difference.norm() <= 1e-5 * gradient.norm(), name
    assert ours.norm == pytest.approx(expected.norm, rel=1e-5)
    assert ours.losses == pytest.approx(expected.losses, abs=1e-4)
    assert len(set(ours.losses)) == len(ours.losses) > 2
    assert all(rank.losses == ours.losses for rank in on_ranks)


def check_validation(on_ranks, layout):
    library = ranks.library_model(Case("llama"))
    expected = [ranks.documents_sums(library, windows(9, size)) for size in SIZES]
    sums = on_ranks[0].sums
    torch.testing.assert_close(sums, torch.stack(expected), rtol=1e-6, atol=0)
    assert all(torch.equal(sums, rank.sums) for rank in on_ranks)

    # Norms, embeddings and what else is not split are on each tensor-parallel rank.
    held = sum(rank.numbers for rank in on_ranks)
    once = layout.replicate * sum(parameter.numel() for parameter in library.parameters())
    if layout.tensor == 1:
        assert held == once
    else:
        assert once < held < 1.3 * once


def step_in_fp16(spoilt):
    """A scaled step of two ranks; rank 1 has an infinite gradient if `spoilt`."""
    rank = dist.get_rank()
    causal_loss = build_causal_model(tiny("llama"), make_mesh(TWO, CPU), SEED, half=torch.float16)
    model = causal_loss.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    before = whole_parameters(model)

    def backward(loss):
        scaler.scale(loss).backward()

    accumulate(causal_loss, rows_of(windows(0, 8)[rank::2], 2), TWO, backward)
    if spoilt and rank == 1:
        next(model.parameters()).grad.to_local()[0] = float("inf")
    scaler.unscale_(optimizer)
    ShardedGradients(model).clip(1.0)
    is_zero = not any(parameter.grad.to_local().any() for parameter in model.parameters())
    assert is_zero == spoilt
    scaler.step(optimizer)
    scaler.update()

    after = whole_parameters(model)
    unchanged = [torch.equal(after[name], before[name]) for name in after]
    assert all(weight.isfinite().all() for weight in after.values())
    assert all(unchanged) == spoilt
    assert scaler.get_scale() == (2.0**9 if spoilt else 2.0**10)


@pytest.mark.parametrize("spoilt", [False, True])
def test_in_fp16_an_infinity_in_one_shard_skips_the_step_on_every_process(spoilt, tmp_path):
    start(step_in_fp16, 2, tmp_path, spoilt)
