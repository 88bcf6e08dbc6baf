"""Parameter groups, the optimizers, and the schedules of the learning rate.

The optimizers step over lists of tensors: a dozen kernels per step instead of some per parameter,
as BERT has 200 of them, and no look at the device. The price is a step function of our own for each
optimizer that torch does not have.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch_optimizer
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from detalbert.engine.gradients import euclidean_norms, local_part
from detalbert.settings.hparams import StepHParams

ParamGroup = dict[str, Any]  # as torch.optim has them: `params`, `lr`, `betas`, `weight_decay`
Tensors = list[Tensor]


def parameter_groups(model: nn.Module, decay: float, optimizer: str = "adamw") -> list[ParamGroup]:
    """Return trainable parameters in two groups: matrices and embeddings decay, vectors do not,
    and are not adapted by LAMB.

    By dimension and not by name: the usual list of names ("LayerNorm.weight", "bias") misses
    ALBERT's `full_layer_layer_norm`. A shared parameter appears once; frozen ones are excluded.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    vectors = [parameter for parameter in trainable if parameter.dim() < 2]
    matrices = [parameter for parameter in trainable if parameter.dim() >= 2]
    no_decay: ParamGroup = {"params": vectors, "weight_decay": 0.0}
    if optimizer == "lamb":
        no_decay["adapted"] = False
    return [{"params": matrices, "weight_decay": decay}, no_decay]


def build_optimizer(
    name: str, groups: list[ParamGroup], lr: float, beta2: float = 0.999
) -> Optimizer:
    """Return RAdam, AdamW or LAMB over `groups`, betas (0.9, `beta2`), at peak rate `lr`."""
    betas = (0.9, beta2)
    if name == "adamw":
        return AdamW(groups, lr=lr, betas=betas, foreach=True)
    if name == "lamb":
        return Lamb(groups, lr=lr, betas=betas)
    return RAdam(groups, lr=lr, betas=betas)


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
        options["num_decay_steps"] = round(total * hparams.decay)
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


class AdamW(torch.optim.AdamW):
    """torch's AdamW over this rank's shards, whose operations are all element-wise: torch refuses
    lists of tensors that are sharded over different meshes.
    """

    def _init_group(self, group: ParamGroup, *lists: list[Any]) -> bool:  # private: its lists
        is_complex = super()._init_group(group, *lists)  # six of them
        for tensors in lists:
            tensors[:] = [local_part(tensor) for tensor in tensors]
        return is_complex


class ListOptimizer(Optimizer):
    """Base class of optimizers that step over all parameters of a group at once."""

    step_group: Callable[[ParamGroup, Tensors], None]

    def step(self, closure: Any = None) -> Any:  # nobody has a closure
        """Step every parameter that has a gradient; all of a group have taken the same steps."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                with torch.no_grad():
                    self.step_group(group, parameters)

    def update_moments(
        self, group: ParamGroup, parameters: Tensors
    ) -> tuple[int, Tensors, Tensors]:
        """Update the moving averages of gradients and squares; return this step's number, from 1,
        and both.
        """
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] += 1

        beta1, beta2 = group["betas"]
        states = [self.state[parameter] for parameter in parameters]
        gradients = [p.grad for p in parameters if p.grad is not None]
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        # v = beta2 v + (1 - beta2) g^2, and m = beta1 m + (1 - beta1) g
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        return states[0]["step"], means, squares


class RAdam(ListOptimizer, torch_optimizer.RAdam):
    """Rectified Adam (Liu et al. 2020, arXiv:1908.03265) as in the published runs, over lists.

    Bitwise identical to its parent, but step sizes are not cached in a table shared by all groups,
    which would step every group at the first group's learning rate. torch.optim.RAdam differs: it
    does not rectify a length rho of exactly 5, nor fold bias correction into the step size.
    """

    def step_group(self, group: ParamGroup, parameters: Tensors) -> None:
        beta1, beta2 = group["betas"]
        lr = group["lr"]
        step, means, squares = self.update_moments(group, parameters)
        # Decoupled weight decay: it does not pass through the moments.
        if group["weight_decay"]:
            torch._foreach_add_(parameters, parameters, alpha=-group["weight_decay"] * lr)

        rectification = rectify(step, beta2)
        step_size = lr * (rectification or 1) / (1 - beta1**step)
        if rectification is None:
            # The variance of the first steps is not known: momentum alone.
            torch._foreach_add_(parameters, means, alpha=-step_size)
        else:
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(parameters, means, roots, -step_size)


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


class Lamb(ListOptimizer, torch_optimizer.Lamb):
    """LAMB (You et al. 2020, arXiv:1904.00962, last version) over lists.

    A tensor's step is scaled by |weights| / |step|, without the parent's clamp of |weights| to 10,
    which would slow ALBERT's word embeddings fourfold (30,000 x 128 at 0.02 have norm 39). As in
    Google's code for ALBERT (google-research/albert, lamb_optimizer.py), groups with `adapted`
    False are not scaled: a bias starts at 0, and a step scaled by its norm would leave it there.
    The parent blocks on the device three times per tensor: for two norms and a step size.
    """

    def step_group(self, group: ParamGroup, parameters: Tensors) -> None:
        _, means, squares = self.update_moments(group, parameters)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        # Adam's step without bias correction, and with decay inside: the norm below counts both.
        updates = list(torch._foreach_div(means, roots))
        if group["weight_decay"]:
            torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if not group.get("adapted", True):
            torch._foreach_add_(parameters, updates, alpha=-group["lr"])
            return

        # The trust ratio of each tensor, [parameters].
        weight_norms = euclidean_norms(parameters)
        update_norms = euclidean_norms(updates)
        undefined = (weight_norms == 0) | (update_norms == 0)
        trust = torch.where(undefined, 1.0, weight_norms / update_norms)
        factors = (-group["lr"] * trust).unbind()
        for parameter, update, factor in zip(parameters, updates, factors, strict=True):
            parameter.addcmul_(update, factor)
