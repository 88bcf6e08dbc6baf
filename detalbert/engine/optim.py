"""Parameter groups, the optimizers, and the schedules of the learning rate.

The optimizers step over lists of tensors: a dozen kernels per step instead of some per parameter,
and no look at the device. They take a step's flag on the device (`keep`) instead of a branch on the
host; the price is a multiplication with it in every list operation of a step that may be skipped.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch_optimizer
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from detalbert.engine.gradients import euclidean_norms, local_gradients, local_part, shard_of
from detalbert.settings.hparams import StepHParams

ParamGroup = dict[str, Any]  # as torch.optim has them: `params`, `lr`, `betas`, `weight_decay`
Tensors = list[Tensor]


def parameter_groups(model: nn.Module, decay: float, optimizer: str = "adamw") -> list[ParamGroup]:
    """Return trainable parameters in two groups: matrices and embeddings decay, vectors do not,
    and are not adapted by LAMB. For Muon the layers' matrices are a group of their own: those in
    an nn.ModuleList.

    By dimension and not by name: the usual list of names ("LayerNorm.weight", "bias") misses
    ALBERT's `full_layer_layer_norm`. A shared parameter appears once; frozen ones are excluded.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    vectors = [p for p in trainable if p.dim() < 2]
    matrices = [p for p in trainable if p.dim() >= 2]
    no_decay: ParamGroup = {"params": vectors, "weight_decay": 0.0}
    if optimizer == "lamb":
        no_decay["adapted"] = False
    if optimizer != "muon":
        return [{"params": matrices, "weight_decay": decay}, no_decay]

    # Muon is for hidden layers; embeddings and heads are stepped by AdamW.
    in_layers = _layer_matrices(model)
    hidden = [p for p in matrices if p in in_layers]
    others = [p for p in matrices if p not in in_layers]
    return [
        {"params": hidden, "weight_decay": decay, "momentum": 0.95},
        {"params": others, "weight_decay": decay},
        no_decay,
    ]


def _layer_matrices(model: nn.Module) -> set[nn.Parameter]:
    """Return the two-dimensional parameters inside module lists."""
    matrices: set[nn.Parameter] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            matrices.update(p for p in module.parameters() if p.dim() == 2)
    return matrices


def build_optimizer(
    name: str, groups: list[ParamGroup], lr: float, beta2: float = 0.999
) -> "ListOptimizer":
    """Return RAdam, AdamW, LAMB or Muon over `groups`, betas (0.9, `beta2`), at peak rate `lr`.

    LAMB (You et al. 2020, arXiv:1904.00962, last version) scales a tensor's step by |weights| /
    |step|, here without torch_optimizer's clamp of |weights| to 10, which would slow ALBERT's word
    embeddings fourfold (30,000 x 128 at 0.02 have norm 39), and without debiased moments. As in
    Google's code for ALBERT (google-research/albert, lamb_optimizer.py), groups with `adapted`
    False are not scaled: a bias starts at 0, and a step scaled by its norm would leave it there.
    """
    kinds: dict[str, Callable[..., ListOptimizer]] = {
        "radam": RAdam,
        "adamw": AdamW,
        "lamb": Lamb,
        "muon": Muon,
    }
    eps = 1e-6 if name == "lamb" else 1e-8
    return kinds[name](groups, lr=lr, betas=(0.9, beta2), eps=eps)


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
    """Return transformers' schedule for every group; step it once per optimizer step.

    The learning rate rises linearly from 0 at step 0 (wsd: `min_rate`), which so changes no
    weights, to its peak at step `warmup`, and falls to `min_rate` of the peak at `total`.
    """
    # transformers' names of the schedules, and their own arguments.
    floor = hparams.min_rate
    name: str = hparams.schedule
    options: dict[str, float] = {}
    if hparams.schedule == "cosine":
        name = "cosine_with_min_lr"
        options["min_lr_rate"] = floor
    elif hparams.schedule == "wsd":
        name = "warmup_stable_decay"
        options["num_decay_steps"] = total - decay_start(hparams, total)
        options["min_lr_ratio"] = floor
    elif floor:
        name = "polynomial"
        options["lr_end"] = floor * optimizer.defaults["lr"]
        warmup = min(warmup, total - 1)  # it divides by the steps of the decay
    return get_scheduler(
        name,
        optimizer,
        num_warmup_steps=warmup,
        num_training_steps=total,
        scheduler_specific_kwargs=options,
    )


class ListOptimizer(Optimizer):
    """Base class of optimizers that step over lists of tensors and never block on the device.

    If the bool of `keep_next_step` is False, a step changes neither weights nor moments; gradients
    must be zero then. If it is True, the step is bitwise identical to one without such a bool.
    """

    step_group: Callable[[ParamGroup, Tensors], None]
    no_steps: Callable[[], int | Tensor] = staticmethod(lambda: 0)  # before a parameter's first one
    keep: Tensor | None = None

    def keep_next_step(self, keep: Tensor | None) -> None:
        """Set the bool on the device by which steps are kept; None: all are."""
        self.keep = keep

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # nobody has a closure
        """Step every parameter that has a gradient; all of a group have taken the same steps."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self.step_group(group, parameters)

    def moments(self, group: ParamGroup, parameters: Tensors) -> tuple[int, Tensors, Tensors]:
        """Update the moving averages of gradients and squares; return the step and both."""
        beta1, beta2 = group["betas"]
        states = [self._next_state(parameter) for parameter in parameters]
        # Of sharded parameters this rank updates its shards; the operations are element-wise.
        gradients = local_gradients(parameters)
        means = [local_part(state["exp_avg"]) for state in states]
        squares = [local_part(state["exp_avg_sq"]) for state in states]
        # v = beta2 v + (1 - beta2) g^2; of a step that is not kept g is 0, and v must stay.
        torch._foreach_mul_(squares, self.if_kept(beta2, otherwise=1.0))
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        self.average(means, gradients, beta1)
        return int(states[0]["step"]), means, squares

    def _next_state(self, parameter: Tensor) -> dict[str, Any]:
        """Return a parameter's state, with this step counted; zeros before its first one."""
        state = self.state[parameter]
        if not state:
            state["step"] = self.no_steps()
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        return state

    def average(self, means: Tensors, gradients: Tensors, beta1: float) -> None:
        """Update the moving averages of gradients."""
        torch._foreach_mul_(means, self.if_kept(beta1, otherwise=1.0))
        torch._foreach_add_(means, gradients, alpha=1 - beta1)

    def if_kept(self, value: float, otherwise: float) -> Any:
        """Return `value`, or `otherwise` in a step that is not kept: a scalar on the device."""
        if self.keep is None:
            return value
        return torch.where(self.keep, value, otherwise)

    def zero_unless_kept(self, tensors: Tensors) -> Any:
        """Return `tensors`, or zeros in a step that is not kept."""
        if self.keep is None:
            return tensors
        return torch._foreach_mul(tensors, self.if_kept(1.0, otherwise=0.0))


class RAdam(ListOptimizer, torch_optimizer.RAdam):
    """Rectified Adam (Liu et al. 2020, arXiv:1908.03265) as in the published runs, over lists.

    Bitwise identical to its parent, but a dozen launches per step and not per parameter; and step
    sizes are not cached in a table shared by all groups, which would step every group at the first
    group's learning rate. torch.optim.RAdam with `decoupled_weight_decay=True` differs: there a
    length rho of exactly 5 is not rectified, and bias correction not folded into the step size.
    """

    def step_group(self, group: ParamGroup, parameters: Tensors) -> None:
        beta1, beta2 = group["betas"]
        lr = group["lr"]
        decay = group["weight_decay"]
        step, means, squares = self.moments(group, parameters)
        # Decoupled weight decay: it does not pass through the moments.
        if decay:
            decayed = self.zero_unless_kept(parameters)
            torch._foreach_add_(parameters, decayed, alpha=-decay * lr)

        rectification = rectify(step, beta2)
        step_size = lr * (rectification or 1) / (1 - beta1**step)
        if rectification is None:
            # The variance of the first steps is not known: momentum alone.
            torch._foreach_add_(parameters, self.zero_unless_kept(means), alpha=-step_size)
        else:
            # An infinite divisor leaves the weights of a step that is not kept as they are.
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, self.if_kept(group["eps"], otherwise=math.inf))
            torch._foreach_addcdiv_(parameters, means, roots, -step_size)


class AdamW(ListOptimizer, torch.optim.AdamW):
    """torch's AdamW, the same operations in the same order, over the shards of this rank."""

    no_steps = staticmethod(lambda: torch.tensor(0.0))

    def average(self, means: Tensors, gradients: Tensors, beta1: float) -> None:
        if self.keep is not None:  # in a step that changes nothing: towards themselves
            unchanged = torch._foreach_mul(means, self.if_kept(0.0, otherwise=1.0))
            torch._foreach_add_(gradients, unchanged)
        torch._foreach_lerp_(means, gradients, 1 - beta1)

    def step_group(self, group: ParamGroup, parameters: Tensors) -> None:
        beta1, beta2 = group["betas"]
        lr = group["lr"]
        decay = group["weight_decay"]
        step, means, squares = self.moments(group, parameters)
        weights = [local_part(parameter) for parameter in parameters]
        if decay:
            torch._foreach_mul_(weights, self.if_kept(1 - lr * decay, otherwise=1.0))
        # Corrections of the bias of both moments, in torch's order of operations.
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - beta2**step) ** 0.5)
        torch._foreach_add_(roots, self.if_kept(group["eps"], otherwise=math.inf))
        step_size = lr / (1 - beta1**step)
        torch._foreach_addcdiv_(weights, means, roots, -step_size)


class Muon(AdamW):
    """Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for groups with `momentum`, and
    AdamW for others, with one learning rate: the size of the steps is alike (arXiv:2502.16982).

    Bitwise identical to torch.optim.Muon(adjust_lr_fn="match_rms_adamw"), but for sharded matrices.
    """

    def step_group(self, group: ParamGroup, parameters: Tensors) -> None:
        if "momentum" not in group:
            return super().step_group(group, parameters)
        lr = group["lr"]
        momentum = group["momentum"]
        gradients = local_gradients(parameters)
        means = [self._momentum_buffer(parameter) for parameter in parameters]
        self.average(means, gradients, momentum)
        torch._foreach_lerp_(gradients, means, momentum)  # Nesterov's

        weights = [local_part(parameter) for parameter in parameters]
        torch._foreach_mul_(weights, self.if_kept(1 - lr * group["weight_decay"], otherwise=1.0))
        # Newton and Schulz need unsharded matrices; of the result each rank takes its shard.
        updates = orthogonal([p.grad for p in parameters if p.grad is not None])
        # Their entries have a root mean square of 1 / sqrt(longer side); AdamW's have about 0.2.
        for parameter, weight, update in zip(parameters, weights, updates, strict=True):
            (shard,) = self.zero_unless_kept([shard_of(parameter, update)])
            like_adamw = 0.2 * math.sqrt(max(parameter.shape))
            weight.add_(shard, alpha=-lr * like_adamw)

    def _momentum_buffer(self, parameter: Tensor) -> Tensor:
        """Return this rank's shard of a parameter's moving average; zeros before its first step."""
        state = self.state[parameter]
        if not state:
            state["step"] = self.no_steps()  # not counted; torch's Adam loads no state without
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return local_part(state["momentum_buffer"])


def orthogonal(matrices: list[Tensor]) -> Iterator[Tensor]:
    """Yield `orthogonalize` of each matrix, unsharded, bitwise identical on all ranks. Collective.
    Of as many matrices as there are ranks, each rank computes one.
    """
    ranks = 1
    rank = 0
    if dist.is_initialized():
        ranks = dist.get_world_size()
        rank = dist.get_rank()
    for start in range(0, len(matrices), ranks):
        # Every rank needs all of these matrices, but computes one of them.
        chunk = [_unsharded(matrix.bfloat16()) for matrix in matrices[start : start + ranks]]
        if rank < len(chunk):
            chunk[rank] = orthogonalize(chunk[rank])
        for owner, matrix in enumerate(chunk):
            if ranks > 1:
                dist.broadcast(matrix, owner)
            yield matrix


def _unsharded(matrix: Tensor) -> Tensor:
    """Return all of a matrix that may be sharded over ranks. Collective."""
    return matrix.full_tensor() if isinstance(matrix, DTensor) else matrix


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return a bfloat16 matrix [m, n] with its singular values near 1, by five iterations of Newton
    and Schulz: s -> 3.4445 s - 4.775 s^3 + 2.0315 s^5.
    """
    # Flat, so that the products below are of the shorter side.
    tall = len(matrix) > matrix.shape[1]
    flat = matrix.T if tall else matrix
    flat = flat / flat.norm().clamp(min=1e-7)
    for _ in range(5):
        square = flat @ flat.T
        square = torch.addmm(square, square, square, beta=-4.775, alpha=2.0315)
        flat = torch.addmm(flat, square, flat, beta=3.4445)
    return flat.T.contiguous() if tall else flat


class Lamb(ListOptimizer, torch_optimizer.Lamb):
    """LAMB, bitwise identical to its parent without clamp of |weights| and without debiasing, but
    for groups that are not `adapted`.

    The parent blocks on the device three times per tensor: for two norms and a step size.
    """

    def step_group(self, group: ParamGroup, parameters: Tensors) -> None:
        decay = group["weight_decay"]
        _, means, squares = self.moments(group, parameters)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        # Adam's step without bias correction, and with decay inside: the norm below counts both.
        updates = torch._foreach_div(means, roots)
        if decay:
            torch._foreach_add_(updates, parameters, alpha=decay)

        if not group.get("adapted", True):
            torch._foreach_add_(
                parameters, self.zero_unless_kept(list(updates)), alpha=-group["lr"]
            )
            return

        # The trust ratio of each tensor, [parameters].
        weight_norms = euclidean_norms(list(parameters))
        update_norms = euclidean_norms(list(updates))
        undefined = (weight_norms == 0) | (update_norms == 0)
        trust = torch.where(undefined, 1.0, weight_norms / update_norms)
        factors = -group["lr"] * trust * self.if_kept(1.0, otherwise=0.0)
        for parameter, update, factor in zip(parameters, updates, factors.unbind(), strict=True):
            parameter.addcmul_(update, factor)


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
