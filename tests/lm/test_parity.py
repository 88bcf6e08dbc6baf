"""The same at every layout: training, validation, checkpoints of another; fp16's loss scaling."""

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as parts
from torch.distributed.tensor import DTensor

from detalbert.engine import optim
from detalbert.engine.resume import ResumeCallback
from detalbert.errors import UserError
from detalbert.training.parts import TensorSaver, load_tensors
from lm.gradients import ShardedGradients, accumulate, add_up, evaluate
from lm.hparams import Layout
from lm.layout import make_mesh
from lm.model import build_causal_model
from lm.samples import continue_greedily
from tests.lm import ranks
from tests.lm.ranks import CPU, Case, rows_of, start, tiny, whole, windows

pytestmark = pytest.mark.usefixtures("fork")

ONE, FOUR, BOTH = Layout(), Layout(shard=4), Layout(shard=2, tensor=2)
TWO, COPIES = Layout(shard=2), Layout(replicate=2, shard=2)


class Job:
    def __init__(self, layout: Layout, seed: int, tied: bool) -> None:
        self.layout = layout
        config = tiny("llama", tie_word_embeddings=tied)
        self.causal_loss = build_causal_model(config, make_mesh(layout, CPU), seed)
        self.model = self.causal_loss.model
        groups = optim.parameter_groups(self.model, 0.1, optimizer="muon")
        self.optimizer = optim.build_optimizer("muon", groups, 3e-3)

    def step(self, number: int) -> float:
        """The loss of a step, which it trains on."""
        share = windows(number, 7)[self.layout.data_rank(dist.get_rank()) :: self.layout.data_ranks]
        sums = add_up(accumulate(self.causal_loss, rows_of(share, 4), self.layout), self.layout)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(sums[0] / sums[2])

    def state(self) -> dict[str, torch.Tensor]:
        found = {name: whole(p) for name, p in self.model.named_parameters()}
        moments = parts.get_optimizer_state_dict(self.model, self.optimizer)["state"]
        for name, kept in moments.items():
            found |= {f"{name}.{key}": whole(value) for key, value in kept.items()}
        return found


# The run that wrote the checkpoint in this folder, and the layouts that read it.
RUNS = {
    "4": (FOUR, False, [TWO, BOTH]),
    "2": (TWO, True, [FOUR]),
    "2 x 2": (BOTH, True, [FOUR, ONE]),
    "copies": (COPIES, False, [TWO, ONE]),  # a machine lost
}
State = tuple[dict[str, torch.Tensor], list[float]]


def write(slots: int, folder: Path) -> dict[str, State]:
    """A step, a checkpoint, and what it holds; the losses of the two steps after it."""
    found = {}
    for name, (layout, tied, _) in RUNS.items():
        if layout.slots == slots:
            job = Job(layout, 7, tied)
            (folder / name).mkdir(exist_ok=True)
            TensorSaver().save(folder / name, job.model, job.optimizer)()
            load_tensors(folder / name, job.model, None)
            assert not job.optimizer.state  # it took no step, and counts none
            job.step(0)
            TensorSaver().save(folder / name, job.model, job.optimizer)()
            found[name] = job.state(), [job.step(number) for number in (1, 2)]
    return found


def read(slots: int, folder: Path) -> list[tuple[str, State]]:
    """What is loaded into other weights, of what is there, and the losses of the next steps."""
    found = []
    for name, (_, tied, layouts) in RUNS.items():
        for layout in (layout for layout in layouts if layout.slots == slots):
            if (folder / name / "tensors.json").exists():
                job = Job(layout, 8, tied)
                load_tensors(folder / name, job.model, job.optimizer)
                found.append((name, (job.state(), [job.step(number) for number in (1, 2)])))
    return found


# Of 5 windows in rows of one some rank has fewer rows than another, and of 3 on 4 one has none.
CASES = {
    "llama": Case("llama", steps=6),
    "llama, tied": Case("llama", {"tie_word_embeddings": True}, per_row=1, batch=5),
    "gpt_neox": Case("gpt_neox", per_row=1, batch=3),
    "qwen2, checkpointed": Case("qwen2", recomputed=0.5),
    "gpt2": Case("gpt2"),
}
LAYOUTS = {1: [ONE], 2: [Layout(tensor=2)], 4: [FOUR, BOTH, COPIES]}
SIZES = [1, 3, 6]  # windows of validation sets: fewer than ranks, too


def cases_of(layout: Layout) -> dict[str, Case]:
    without = {"gpt2"} if layout.tensor > 1 else set()
    without |= {"qwen2"} if layout == BOTH else set()
    without |= {"gpt_neox", "qwen2", "gpt2"} if layout == FOUR else set()  # COPIES has all
    return {name: case for name, case in CASES.items() if case.family not in without}


def validate(layout: Layout) -> tuple[torch.Tensor, int]:
    """The sums of each set of windows, and the numbers that this rank holds."""
    mesh = make_mesh(layout, CPU)
    causal_loss = build_causal_model(tiny("llama"), mesh, 7)
    model = causal_loss.model
    mine = layout.data_rank(dist.get_rank())
    copy, shard = (mesh[name].get_local_rank() for name in ("replicate", "shard"))
    assert mine == copy * layout.shard + shard
    before = list(model.parameters())
    shares = [windows(9, size)[mine :: layout.data_ranks] for size in SIZES]
    sums = [evaluate(causal_loss, rows_of(share, 1), layout) for share in shares]
    texts = [windows(3, 1)[0][0][:5], windows(4, 1)[0][0][:9]]
    texts = continue_greedily(causal_loss, texts, 6)
    library = ranks.library_model(Case("llama"))
    for text in texts:
        assert torch.equal(text[-6:], library(text[None]).logits[0, -7:-1].argmax(1))
    assert model.training and all(isinstance(p, DTensor) for p in before)
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    trial: Any = SimpleNamespace(context=SimpleNamespace(models=[model]))
    in_part = pytest.raises(UserError, match="would be saved in part")
    with in_part if layout.shard * layout.tensor > 1 else contextlib.nullcontext():
        ResumeCallback.on_checkpoint_save_start(trial, {})
    accumulate(causal_loss, rows_of(windows(0, 2), 1), layout)
    gradients = ShardedGradients(model)
    assert float(gradients.clip(0.01)) > 0.02
    assert float(gradients.clip(0.01)) == pytest.approx(0.01, rel=1e-3)
    return torch.stack(sums), sum(p.to_local().numel() for p in before)


def at(slots: int, folder: Path, first: bool) -> tuple[Any, dict[str, State], Any]:
    """Processes are started four times only: the first steps of each take long."""
    layouts = LAYOUTS[slots] if first else []
    trained = [(ranks.train(layout, cases_of(layout)), validate(layout)) for layout in layouts]
    return trained, write(slots, folder) if first else {}, read(slots, folder)


def test_a_layout_trains_as_the_library_does_and_reads_what_another_wrote(tmp_path):
    expected = {name: ranks.reference(case) for name, case in CASES.items()}
    written: dict[str, State] = {}
    loaded: list[tuple[str, State]] = []
    for slots, first in ((2, True), (4, True), (2, False), (1, True)):
        everywhere = start(at, slots, tmp_path, slots, tmp_path, first)
        trained = zip(*(found for found, _, _ in everywhere), strict=True)
        for layout, there in zip(LAYOUTS[slots], trained, strict=False):
            for case in cases_of(layout):
                same_training([found[case] for found, _ in there], expected[case])
            same_validation([found for _, found in there], layout)
        written |= everywhere[0][1]
        loaded += everywhere[0][2]
    assert len(loaded) == sum(len(layouts) for _, _, layouts in RUNS.values())
    for name, (state, losses) in loaded:
        saved, wanted = written[name]
        assert state.keys() == saved.keys() and len(saved) > 60
        assert all(torch.equal(state[key], saved[key]) for key in saved)
        assert losses == pytest.approx(wanted, abs=1e-5)


def same_training(everywhere: list[ranks.Trained], expected: ranks.Trained) -> None:
    ours = everywhere[0]
    assert ours.initial.keys() == ours.gradients.keys() == expected.gradients.keys()
    for key, value in expected.initial.items():
        assert torch.equal(ours.initial[key], value), key
    for key, value in expected.gradients.items():
        assert (ours.gradients[key] - value).norm() <= 1e-5 * value.norm(), key
    assert ours.norm == pytest.approx(expected.norm, rel=1e-5)
    assert ours.losses == pytest.approx(expected.losses, abs=1e-4)
    assert len(set(ours.losses)) == len(ours.losses) > 2
    assert all(other.losses == ours.losses for other in everywhere)


def same_validation(everywhere: list[tuple[torch.Tensor, int]], layout: Layout) -> None:
    library = ranks.library_model(Case("llama"))
    expected = [ranks.documents_sums(library, windows(9, size)) for size in SIZES]
    sums, numbers = zip(*everywhere, strict=True)
    torch.testing.assert_close(sums[0], torch.stack(expected), rtol=1e-6, atol=0)
    assert all(torch.equal(sums[0], other) for other in sums)
    # Norms, embeddings and what else tensor parallel does not split are on each of its peers.
    held = sum(numbers)
    once = layout.replicate * sum(p.numel() for p in library.parameters())
    assert held == once if layout.tensor == 1 else once < held < 1.3 * once


def step(spoilt: bool) -> None:
    causal_loss = build_causal_model(tiny("llama"), make_mesh(TWO, CPU), 7, half=torch.float16)
    model = causal_loss.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    first = {name: whole(p) for name, p in model.named_parameters()}
    rank = dist.get_rank()
    rows = rows_of(windows(0, 8)[rank::2], 2)
    accumulate(causal_loss, rows, TWO, lambda loss: scaler.scale(loss).backward())
    if spoilt and rank == 1:
        next(model.parameters()).grad.to_local()[0] = float("inf")
    scaler.unscale_(optimizer)
    ShardedGradients(model).clip(1.0)
    scaler.step(optimizer)
    scaler.update()
    after = {name: whole(p) for name, p in model.named_parameters()}
    assert all(bool(value.isfinite().all()) for value in after.values())
    assert all(torch.equal(value, first[name]) for name, value in after.items()) == spoilt
    assert scaler.get_scale() == (2.0**9 if spoilt else 2.0**10)


@pytest.mark.parametrize("spoilt", [False, True])
def test_in_fp16_an_infinity_in_one_shard_skips_the_step_on_every_process(spoilt, tmp_path):
    ranks.start(step, 2, tmp_path, spoilt)
