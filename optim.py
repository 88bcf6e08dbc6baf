"""Parameter groups, the optimizers, and warm-up with linear decay."""

import functools
import math
from fractions import Fraction
from typing import Any, Dict, List, Optional

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from detalbert.errors import UserError
from radam import RAdam


def parameter_groups(model: nn.Module, weight_decay: float) -> List[Dict[str, Any]]:
    """Trainable parameters in two groups: matrices and embeddings decay, vectors do not.

    By dimension and not by name: the usual list of names ("LayerNorm.weight", "bias") misses
    ALBERT's `full_layer_layer_norm`. A shared parameter is there once; frozen ones are left out.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def build_optimizer(
    name: str, groups: List[Dict[str, Any]], lr: float, beta2: float = 0.999
) -> Optimizer:
    """RAdam, AdamW or LAMB over `groups`, betas (0.9, `beta2`), at peak learning rate `lr`.

    eps is 1e-8, and LAMB's 1e-6. LAMB (You et al. 2020, arXiv:1904.00962) scales every tensor's
    step by |weights| / |step|; torch_optimizer cuts |weights| at 10 by default, which would slow
    ALBERT's word embeddings fourfold from the start (30,000 x 128 at 0.02 have norm 39), so it is
    let be. Its moments are not debiased, as in the paper's last version.
    Raises UserError for another name.
    """
    if name == "radam":
        return RAdam(groups, lr=lr, betas=(0.9, beta2), eps=1e-8)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=(0.9, beta2), eps=1e-8)
    if name == "lamb":
        from torch_optimizer import Lamb

        return Lamb(groups, lr=lr, betas=(0.9, beta2), eps=1e-6, clamp_value=1e6)
    raise UserError(f"hyperparameters.optimizer: {name!r} is not one of radam, adamw, lamb")


def total_steps(
    windows: int, global_batch_size: int, epochs: float, max_steps: Optional[int]
) -> int:
    """Optimizer steps of a run: `max_steps` if given, else enough to see every window `epochs`
    times. 132,198 windows twice at 48 a step are 5,509 steps (5,508.25 rounded up)."""
    if max_steps is not None:
        return max_steps
    # As decimals: in floating point 100 * 1.1 is 110.00000000000001, a step more at 10 a step.
    return math.ceil(windows * Fraction(str(epochs)) / global_batch_size)


def warmup_steps(total: int, fraction: float) -> int:
    """How many of `total` optimizer steps warm up, to the nearest step."""
    return round(total * fraction)


def lr_factor(step: int, total: int, warmup: int) -> float:
    """What the peak learning rate is multiplied by at optimizer step `step`, counted from 0.

    Rises in a line from 0 at step 0 to 1 at step `warmup`, then falls in a line to 0 at `total`,
    as the library's `get_linear_schedule_with_warmup`. The first step of a warm-up thus moves
    nothing. 0 past the end.
    """
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def build_scheduler(optimizer: Optimizer, total: int, warmup: int) -> LambdaLR:
    """`lr_factor` on every group of `optimizer`; step it once per optimizer step."""
    return LambdaLR(optimizer, functools.partial(lr_factor, total=total, warmup=warmup))
