"""Parameter groups, the optimizers, and the schedules of the learning rate."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch_optimizer
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from detalbert.engine.gradients import euclidean_norms, local_part, shard_of
from detalbert.settings.hparams import StepHParams


def parameter_groups(model: nn.Module, decay: float, muon: bool = False) -> list[dict[str, Any]]:
    """Return trainable parameters in two groups: matrices and embeddings decay, vectors do not.
    With `muon` the layers' matrices are a group of their own: those in an nn.ModuleList.

    By dimension and not by name: the usual list of names ("LayerNorm.weight", "bias") misses
    ALBERT's `full_layer_layer_norm`. A shared parameter appears once; frozen ones are excluded.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    layers = (m for m in model.modules() if isinstance(m, nn.ModuleList) and muon)
    hidden = {p for m in layers for p in m.parameters() if p.dim() == 2}
    matrices = [p for p in parameters if p.dim() >= 2]
    groups = [
        {"params": [p for p in matrices if p in hidden], "weight_decay": decay, "momentum": 0.95},
        {"params": [p for p in matrices if p not in hidden], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return groups[not muon :]


def build_optimizer(
    name: str, groups: list[dict[str, Any]], lr: float, beta2: float = 0.999
) -> Optimizer:
    """Return RAdam, AdamW, LAMB or Muon over `groups`, betas (0.9, `beta2`), at peak rate `lr`.

    LAMB (You et al. 2020, arXiv:1904.00962, last version) scales every tensor's step by |weights| /
    |step|, here without torch_optimizer's clamp of |weights| to 10, which would slow ALBERT's word
    embeddings fourfold (30,000 x 128 at 0.02 have norm 39), and without debiased moments.
    """
    kinds: dict[str, Any] = {"radam": RAdam, "adamw": AdamW, "lamb": Lamb, "muon": Muon}
    return kinds[name](groups, lr=lr, betas=(0.9, beta2), eps=1e-6 if name == "lamb" else 1e-8)


def plan_steps(hparams: StepHParams, windows: int) -> tuple[int, int]:
    """Return the optimizer steps of the whole run, and how many of them are warm-up steps."""
    steps = hparams.length(windows).steps
    return steps, round(steps * hparams.warmup_fraction)


def decay_start(hparams: StepHParams, total: int) -> int:
    """Return the step from which wsd decays in a run of `total` steps."""
    return total - round(total * hparams.decay)


def build_scheduler(
    optimizer: Optimizer, hparams: StepHParams, total: int, warmup: int
) -> LambdaLR:
    """Return transformers' schedule for every group; step it once per optimizer step. The learning
    rate rises linearly from 0 at step 0 (wsd: `min_rate`), which so changes no weights, to its peak
    at step `warmup`, and falls to `min_rate` of the peak at `total`.
    """
    low, decay = hparams.min_rate, total - decay_start(hparams, total)
    plain: tuple[str, dict] = ("linear", {})
    name, keys = {
        "linear": ("polynomial", {"lr_end": low * optimizer.defaults["lr"]}) if low else plain,
        "cosine": ("cosine_with_min_lr", {"min_lr_rate": low}),
        "wsd": ("warmup_stable_decay", {"num_decay_steps": decay, "min_lr_ratio": low}),
    }[hparams.schedule]
    if name == "polynomial":  # it divides by the steps of the decay
        warmup = min(warmup, total - 1)
    return get_scheduler(name, optimizer, warmup, total, keys)


Tensors = list[torch.Tensor]


class _ByGroup(Optimizer):
    """Base class of optimizers that step over lists of tensors and never block on the device.

    `keep`, if set, is a bool on the device. If False, a step changes neither weights nor moments;
    gradients must be zero then. If True, the step is bitwise identical to one without `keep`.
    """

    step_group: Callable[[dict[str, Any], Tensors], None]
    no_steps: Callable[[], Any] = staticmethod(lambda: 0)  # a parameter's, before its first one
    keep: torch.Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # nobody has a closure
        """Step every parameter that has a gradient; all of a group have taken the same steps."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self.step_group(group, parameters)

    def moments(self, group: dict[str, Any], parameters: Tensors) -> tuple[int, Tensors, Tensors]:
        """Update the moving averages of gradients and squares; return the step and both."""
        beta1, beta2 = group["betas"]
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = self.no_steps()
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] += 1
        states = [self.state[p] for p in parameters]
        gradients = [local_part(p.grad) for p in parameters]
        means = [local_part(state["exp_avg"]) for state in states]
        squares = [local_part(state["exp_avg_sq"]) for state in states]
        torch._foreach_mul_(squares, self.kept(beta2, 1.0))
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        self.average(means, gradients, beta1)
        return int(states[0]["step"]), means, squares

    def average(self, means: Tensors, gradients: Tensors, beta1: float) -> None:
        """Update the moving averages of gradients."""
        torch._foreach_mul_(means, self.kept(beta1, 1.0))
        torch._foreach_add_(means, gradients, alpha=1 - beta1)

    def kept(self, value: float, otherwise: float) -> Any:
        """Return `value`, or `otherwise` in a step that is not kept: a scalar on the device."""
        return value if self.keep is None else torch.where(self.keep, value, otherwise)

    def only_kept(self, tensors: Tensors) -> Any:
        """Return `tensors`, or zeros in a step that is not kept."""
        return tensors if self.keep is None else torch._foreach_mul(tensors, self.kept(1.0, 0.0))


class RAdam(_ByGroup, torch_optimizer.RAdam):
    """Rectified Adam (Liu et al. 2020, arXiv:1908.03265) as in the published runs, over lists.

    Bitwise identical to its parent, but a dozen launches per step and not per parameter; and step
    sizes are not cached in a table shared by all groups, which would step every group at the first
    group's learning rate. torch.optim.RAdam with `decoupled_weight_decay=True` differs: there a
    length rho of exactly 5 is not rectified, and bias correction not folded into the step size.
    """

    def step_group(self, group: dict[str, Any], parameters: Tensors) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        step, means, squares = self.moments(group, parameters)
        if group["weight_decay"]:
            shares = self.only_kept(parameters)
            torch._foreach_add_(parameters, shares, alpha=-group["weight_decay"] * lr)
        rectification = rectify(step, beta2)
        step_size = lr * (rectification or 1) / (1 - beta1**step)
        if rectification is None:
            torch._foreach_add_(parameters, self.only_kept(means), alpha=-step_size)
        else:
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, self.kept(group["eps"], math.inf))
            torch._foreach_addcdiv_(parameters, means, roots, -step_size)


class AdamW(_ByGroup, torch.optim.AdamW):
    """torch's AdamW, the same operations in the same order, over the shards of this rank."""

    no_steps = staticmethod(lambda: torch.tensor(0.0))

    def average(self, means: Tensors, gradients: Tensors, beta1: float) -> None:
        if self.keep is not None:  # in a step that changes nothing: towards themselves
            torch._foreach_add_(gradients, torch._foreach_mul(means, self.kept(0.0, 1.0)))
        torch._foreach_lerp_(means, gradients, 1 - beta1)

    def step_group(self, group: dict[str, Any], parameters: Tensors) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        step, means, squares = self.moments(group, parameters)
        weights = [local_part(parameter) for parameter in parameters]
        if group["weight_decay"]:
            torch._foreach_mul_(weights, self.kept(1 - lr * group["weight_decay"], 1.0))
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - beta2**step) ** 0.5)
        torch._foreach_add_(roots, self.kept(group["eps"], math.inf))
        torch._foreach_addcdiv_(weights, means, roots, -(lr / (1 - beta1**step)))


class Muon(AdamW):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for groups with `momentum`, and
    AdamW for others, with one learning rate: the size of the steps is alike (arXiv:2502.16982).

    Bitwise identical to torch.optim.Muon(adjust_lr_fn="match_rms_adamw"), but for sharded matrices.
    """

    def step_group(self, group: dict[str, Any], parameters: Tensors) -> None:
        if "momentum" not in group:
            return super().step_group(group, parameters)
        lr, gradients = group["lr"], [local_part(p.grad) for p in parameters]
        for parameter in parameters:
            if not (state := self.state[parameter]):
                state["step"] = self.no_steps()  # not counted; torch's Adam loads no state without
                state["momentum_buffer"] = torch.zeros_like(parameter)
        means = [local_part(self.state[p]["momentum_buffer"]) for p in parameters]
        self.average(means, gradients, group["momentum"])
        torch._foreach_lerp_(gradients, means, group["momentum"])  # Nesterov's
        weights = [local_part(parameter) for parameter in parameters]
        torch._foreach_mul_(weights, self.kept(1 - lr * group["weight_decay"], 1.0))
        moves = orthogonal([parameter.grad for parameter in parameters])
        for parameter, weight, whole in zip(parameters, weights, moves, strict=True):
            (move,) = self.only_kept([shard_of(parameter, whole)])
            weight.add_(move, alpha=-lr * (0.2 * math.sqrt(max(parameter.shape))))


def orthogonal(matrices: list[Any]) -> Iterator[torch.Tensor]:
    """Yield `orthogonalize` of each matrix, unsharded, bitwise identical on all ranks. Collective.
    Of as many matrices as there are ranks, each rank computes one.
    """
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    for start in range(0, len(matrices), ranks):
        some = [matrix.bfloat16() for matrix in matrices[start : start + ranks]]
        whole = [m.full_tensor() if isinstance(m, DTensor) else m for m in some]
        if rank < len(whole):
            whole[rank] = orthogonalize(whole[rank])
        for owner, matrix in enumerate(whole):
            if ranks > 1:
                dist.broadcast(matrix, owner)
            yield matrix


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    """Return a bfloat16 matrix [m, n] with its singular values near 1, by five iterations of Newton
    and Schulz: s -> 3.4445 s - 4.775 s^3 + 2.0315 s^5.
    """
    flat = matrix.T if len(matrix) > matrix.shape[1] else matrix
    flat = flat / flat.norm().clamp(min=1e-7)
    for _ in range(5):
        square = flat @ flat.T
        square = torch.addmm(square, square, square, beta=-4.775, alpha=2.0315)
        flat = torch.addmm(flat, square, flat, beta=3.4445)
    return flat.T.contiguous() if len(matrix) > matrix.shape[1] else flat


class Lamb(_ByGroup, torch_optimizer.Lamb):
    """LAMB, bitwise identical to its parent without clamp of |weights| and without debiasing.

    The parent blocks on the device three times per tensor: for two norms and a step size.
    """

    def step_group(self, group: dict[str, Any], parameters: Tensors) -> None:
        _, means, squares = self.moments(group, parameters)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        moves = torch._foreach_div(means, roots)
        if group["weight_decay"]:
            torch._foreach_add_(moves, parameters, alpha=group["weight_decay"])
        weights = euclidean_norms(list(parameters))
        sizes = euclidean_norms(list(moves))
        trust = torch.where((weights == 0) | (sizes == 0), 1.0, weights / sizes)  # [parameters]
        factors = -group["lr"] * trust * self.kept(1.0, 0.0)
        for parameter, move, factor in zip(parameters, moves, factors.unbind(), strict=True):
            parameter.addcmul_(move, factor)


def rectify(step: int, beta2: float) -> float | None:
    """Return the paper's r_t times sqrt(1 - beta2^t), or None while the variance is intractable: up
    to step 5 with beta2 0.999.
    """
    limit = 2 / (1 - beta2) - 1
    power = beta2**step
    rho = limit - 2 * step * power / (1 - power)
    if rho < 5:
        return None
    return math.sqrt((1 - power) * (rho - 4) / (limit - 4) * (rho - 2) / rho * limit / (limit - 2))
