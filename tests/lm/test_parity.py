"""The same training at every layout: initial bits, first gradients, losses, against the library;
fp16's loss scaling over shards."""

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lm.gradients import accumulate, clip
from lm.layout import Layout, make_mesh
from lm.model import build_model
from tests.lm import ranks
from tests.lm.ranks import CPU, Case, Trained, rows_of, tiny, whole, windows

pytestmark = pytest.mark.usefixtures("fork")

CASES = {
    "llama": Case("llama", steps=20),
    "tied, two rows and more a step": Case("llama", {"tie_word_embeddings": True}, per_row=1),
    "gpt_neox": Case("gpt_neox"),
    "qwen2, checkpointed": Case("qwen2", checkpointing=True),
    "gpt2": Case("gpt2"),
}
LAYOUTS = {
    "one process": Layout(),
    "shard 4": Layout(shard=4),
    "tensor 2": Layout(tensor=2),
    "shard 2 x tensor 2": Layout(shard=2, tensor=2),
    "replicate 2 x shard 2": Layout(replicate=2, shard=2),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    return ranks.start(ranks.reference, 1, tmp_path_factory.mktemp("reference"), CASES)[0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_trains_as_the_library_does(
    name: str, reference: dict[str, Trained], tmp_path: Path
) -> None:
    layout = LAYOUTS[name]
    cases = {k: case for k, case in CASES.items() if layout.tensor == 1 or case.family != "gpt2"}
    everywhere = ranks.start(ranks.train, layout.slots, tmp_path, layout, cases)
    for case in cases:
        ours, expected = everywhere[0][case], reference[case]
        assert ours.initial.keys() == ours.gradients.keys() == expected.gradients.keys()
        for key, value in expected.initial.items():
            assert torch.equal(ours.initial[key], value), key
        for key, value in expected.gradients.items():
            assert (ours.gradients[key] - value).norm() <= 1e-5 * value.norm(), key
        assert math.isclose(ours.norm, expected.norm, rel_tol=1e-5)
        assert max(abs(a - b) for a, b in zip(ours.losses, expected.losses, strict=True)) <= 1e-4
        assert len(set(ours.losses)) == CASES[case].steps
        assert all(other[case].losses == ours.losses for other in everywhere)


TWO = Layout(shard=2)


def steps(spoilt: bool) -> tuple[dict[str, torch.Tensor], float]:
    """Weights before and after a step whose gradient may be infinite on rank 1; the scale."""
    model = build_model(tiny("llama"), make_mesh(TWO, CPU), 7, half=torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    first = {name: whole(p) for name, p in model.named_parameters()}
    rank = dist.get_rank()
    share = windows(0, 8)[rank::2]
    accumulate(model, rows_of(share, 2), TWO, lambda loss: scaler.scale(loss).backward())
    if spoilt and rank == 1:
        next(model.parameters()).grad.to_local()[0] = float("inf")
    scaler.unscale_(optimizer)
    clip(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    moved = {name: whole(p) - first[name] for name, p in model.named_parameters()}
    return moved, scaler.get_scale()


def test_an_infinity_in_one_shard_skips_the_step_on_every_process(tmp_path: Path) -> None:
    for spoilt, scale in ((False, 2.0**10), (True, 2.0**9)):
        folder = tmp_path / str(spoilt)
        folder.mkdir()
        for moved, after in ranks.start(steps, 2, folder, spoilt):
            assert after == scale
            assert any(bool(change.any()) for change in moved.values()) != spoilt
            assert all(bool(change.isfinite().all()) for change in moved.values())
