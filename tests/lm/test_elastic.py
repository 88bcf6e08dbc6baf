"""A checkpoint of one layout, read at another: the same bits, then the same training."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict as parts

from detalbert.engine.handover import Unsharded
from detalbert.errors import UserError
from detalbert.training.parts import TensorSaver, load_tensors
from lm.gradients import accumulate, add_up
from lm.layout import Layout, make_mesh
from lm.model import build_model
from tests.lm.ranks import CPU, rows_of, start, tiny, whole, windows

pytestmark = pytest.mark.usefixtures("fork")

ONE, FOUR, BOTH = Layout(), Layout(shard=4), Layout(shard=2, tensor=2)
TWO, COPIES = Layout(shard=2), Layout(replicate=2, shard=2)


class Job:
    """A model and its optimizer at a layout."""

    def __init__(self, layout: Layout, seed: int, tied: bool) -> None:
        self.layout = layout
        config = tiny("llama", tie_word_embeddings=tied)
        self.model = build_model(config, make_mesh(layout, CPU), seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def step(self, number: int) -> float:
        """The loss of a step, which it trains on."""
        share = windows(number, 7)[self.layout.data_rank(dist.get_rank()) :: self.layout.data_ranks]
        sums = add_up(accumulate(self.model, rows_of(share, 2), self.layout), self.layout)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(sums[0] / sums[2])

    def state(self) -> dict[str, torch.Tensor]:
        found = {name: whole(p) for name, p in self.model.named_parameters()}
        moments = parts.get_optimizer_state_dict(self.model, self.optimizer)["state"]
        for name, kept in moments.items():
            found |= {f"{name}.{key}": whole(value) for key, value in kept.items()}
        return found


def write(layout: Layout, folder: Path, tied: bool) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Two steps, a checkpoint, and what it holds; the losses of the two steps after it."""
    job = Job(layout, 7, tied)
    for number in range(2):
        job.step(number)
    (folder / "saved").mkdir(exist_ok=True)
    TensorSaver().save(folder / "saved", job.model, job.optimizer)()
    return job.state(), [job.step(number) for number in (2, 3)]


def read(layout: Layout, folder: Path, tied: bool) -> tuple[dict[str, torch.Tensor], list[float]]:
    """What is loaded at `layout` into other weights, and the losses of the next two steps."""
    job = Job(layout, 8, tied)
    load_tensors(folder / "saved", job.model, job.optimizer)
    return job.state(), [job.step(number) for number in (2, 3)]


@pytest.mark.parametrize(
    "layouts, tied",
    [
        ([FOUR, TWO, BOTH], False),  # 4 -> 2, 4 -> 2 x 2
        ([TWO, FOUR], True),  # 2 -> 4
        ([BOTH, FOUR, ONE], True),  # 2 x 2 -> 4
        ([COPIES, TWO, ONE], False),  # a machine lost
    ],
    ids=["4", "2", "2 x 2", "copies"],
)
def test_another_layout_reads_the_same_bits(
    tmp_path: Path, layouts: list[Layout], tied: bool
) -> None:
    first, *others = layouts
    saved, losses = run(write, first, tmp_path, tied)
    assert len(saved) > 60
    for layout in others:
        loaded, after = run(read, layout, tmp_path, tied)
        assert loaded.keys() == saved.keys()
        assert all(torch.equal(loaded[name], saved[name]) for name in saved)
        assert after == pytest.approx(losses, abs=1e-5)


def run(what: Any, layout: Layout, folder: Path, tied: bool) -> tuple[Any, Any]:
    place = folder / f"{what.__name__} {layout}"
    place.mkdir()
    return start(_in, layout.slots, place, what, layout, folder, tied)[0]


def _in(what: Any, *arguments: Any) -> Any:
    return what(*arguments)


def before_any_step(folder: Path) -> list[bool]:
    """Whether saving and loading weights leave an optimizer that took no step as it was."""
    job = Job(ONE, 7, False)
    (folder / "saved").mkdir(exist_ok=True)
    TensorSaver().save(folder / "saved", job.model, job.optimizer)()
    load_tensors(folder / "saved", job.model, None)
    return [not job.optimizer.state]


def test_an_optimizer_that_took_no_step_counts_none(tmp_path: Path) -> None:
    assert start(before_any_step, 1, tmp_path, tmp_path)[0] == [True]


def said_at_a_save(layout: Layout) -> str:
    """What is said when Determined's own loop, which saves the chief's part alone, begins."""
    model = build_model(tiny("llama"), make_mesh(layout, CPU), seed=7)
    try:
        Unsharded(model).on_checkpoint_save_start({})
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("layout, split", [(TWO, True), (Layout(replicate=2), False)])
def test_a_model_in_parts_is_not_saved_as_a_whole(
    tmp_path: Path, layout: Layout, split: bool
) -> None:
    for said in start(said_at_a_save, 2, tmp_path, layout):
        assert ("is split over processes and would be saved in part" in said) == split
