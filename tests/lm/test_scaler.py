"""fp16's loss scaling over shards: an infinity on one process is one for all."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lm.gradients import accumulate, clip
from lm.layout import Layout, make_mesh
from lm.model import build_model
from tests.lm.ranks import CPU, rows_of, start, tiny, whole, windows

pytestmark = pytest.mark.usefixtures("fork")

BOTH = Layout(shard=2)


def steps(spoilt: bool) -> tuple[dict[str, torch.Tensor], float]:
    """Weights before and after a step whose gradient may be infinite on rank 1; the scale."""
    model = build_model(tiny("llama"), make_mesh(BOTH, CPU), 7, half=torch.float16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    first = {name: whole(p) for name, p in model.named_parameters()}
    rank = dist.get_rank()
    share = windows(0, 8)[rank::2]
    accumulate(model, rows_of(share, 2), BOTH, lambda loss: scaler.scale(loss).backward())
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
        for moved, after in start(steps, 2, folder, spoilt):
            assert after == scale
            assert any(bool(change.any()) for change in moved.values()) != spoilt
            assert all(bool(change.isfinite().all()) for change in moved.values())
