"""Shares of unequal size: equal numbers of forwards, gradients as on one process, no hang."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from lm.gradients import accumulate, clip, evaluate
from lm.layout import Layout, make_mesh
from lm.model import build_model
from tests.lm import ranks
from tests.lm.ranks import CPU, Case, Trained, documents_loss, rows_of, tiny, windows

pytestmark = pytest.mark.usefixtures("fork")

# In each layout some rank has fewer rows than another, and with 3 windows on 4 one has none.
UNEVEN = {
    "5 windows on shard 2": (Layout(shard=2), 5),
    "7 windows on shard 4": (Layout(shard=4), 7),
    "3 windows on replicate 2 x shard 2": (Layout(replicate=2, shard=2), 3),
    "5 windows on shard 2 x tensor 2": (Layout(shard=2, tensor=2), 5),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Trained]:
    cases = {size: Case("llama", batch=size) for size in (3, 5, 7)}
    return ranks.start(ranks.reference, 1, tmp_path_factory.mktemp("reference"), cases)[0]


@pytest.mark.parametrize("name", UNEVEN)
def test_unequal_shares_train_as_one_process(
    name: str, reference: dict[int, Trained], tmp_path: Path
) -> None:
    layout, size = UNEVEN[name]
    case = {"case": Case("llama", batch=size, per_row=1)}
    ours = ranks.start(ranks.train, layout.slots, tmp_path, layout, case)[0]["case"]
    for key, value in reference[size].gradients.items():
        assert (ours.gradients[key] - value).norm() <= 1e-5 * value.norm(), key
    assert ours.losses == pytest.approx(reference[size].losses, abs=1e-4)


def validate(layout: Layout, sizes: list[int]) -> dict[str, Any]:
    """Sums of validation sets of `sizes` windows, and what is there after them."""
    mesh = make_mesh(layout, CPU)
    model = build_model(tiny("llama"), mesh, 7)
    mine = layout.data_rank(dist.get_rank())
    before = list(model.parameters())
    sums = [
        evaluate(model, rows_of(windows(9, size)[mine :: layout.data_ranks], 1), layout)
        for size in sizes
    ]
    place = mesh["replicate"].get_local_rank(), mesh["shard"].get_local_rank()
    after = list(model.parameters())
    accumulate(model, rows_of(windows(0, 2), 1), layout)
    norm = clip(model.parameters(), 0.01)
    return {
        "sums": torch.stack(sums),
        "kept": all(a is b for a, b in zip(before, after, strict=True)),
        "sharded": all(isinstance(p, DTensor) for p in after),
        "numbers": sum(p.to_local().numel() for p in model.parameters()),
        "training": model.training,
        "data rank": (mine, place[0] * layout.shard + place[1]),
        "norms": (float(norm), float(clip(model.parameters(), 0.01))),
    }


@pytest.mark.parametrize(
    "layout", [Layout(shard=4), Layout(replicate=2, shard=2), Layout(shard=2, tensor=2)], ids=str
)
def test_a_validation_set_smaller_than_the_ranks(layout: Layout, tmp_path: Path) -> None:
    sizes = [1, 3, 6]
    (tmp_path / "one").mkdir()
    one = ranks.start(validate, 1, tmp_path / "one", Layout(), sizes)[0]
    everywhere = ranks.start(validate, 4, tmp_path, layout, sizes)
    for there in everywhere:
        torch.testing.assert_close(there["sums"], one["sums"], rtol=1e-6, atol=0)
        assert torch.equal(there["sums"], everywhere[0]["sums"])
        assert there["kept"] and there["sharded"] and there["training"]
        assert there["data rank"][0] == there["data rank"][1]
        before, after = there["norms"]
        assert before > 0.02 and after == pytest.approx(0.01, rel=1e-3)
    assert [there["data rank"][0] for there in everywhere] == [
        layout.data_rank(rank) for rank in range(4)
    ]
    # Norms, embeddings and what else tensor parallel does not split are on each of its peers.
    held = sum(there["numbers"] for there in everywhere)
    whole = layout.replicate * one["numbers"]
    assert held == whole if layout.tensor == 1 else whole < held < 1.3 * whole


def test_sums_are_those_of_documents_apart(tmp_path: Path) -> None:
    case = Case("llama", batch=6, steps=1)
    initial = ranks.start(ranks.reference, 1, tmp_path, {"case": case})[0]["case"].initial
    model = AutoModelForCausalLM.from_config(tiny("llama"))
    model.load_state_dict(initial)
    (tmp_path / "ours").mkdir()
    sums = ranks.start(validate, 1, tmp_path / "ours", Layout(), [6])[0]["sums"][0]
    expected = documents_loss(model, windows(9, 6)).item()
    assert float(sums[0] / sums[2]) == pytest.approx(expected, abs=1e-5)
