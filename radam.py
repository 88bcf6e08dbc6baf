"""RAdam with torch_optimizer's arithmetic, for all parameters of a group at a time."""

import math
from typing import Any, Callable, Dict, List, Optional

import torch
import torch_optimizer


class RAdam(torch_optimizer.RAdam):
    """Rectified Adam (Liu et al. 2020, arXiv:1908.03265), as its parent steps, which the published
    runs used.

    The same operations in the same order, so that the bits are the same, but over lists of
    tensors: on a GPU a step is a dozen launches and not a dozen for every parameter. Three things
    differ from torch.optim.RAdam with `decoupled_weight_decay=True`: decay is always decoupled
    (torch_optimizer's own page says L2), a rectified length rho of exactly 5 counts as rectified,
    and bias correction is folded into the step size. One thing differs from the parent: step
    sizes are not kept in a table that all groups share, by which every group would step at the
    first group's learning rate.

    eps is added to the square root of the uncorrected second moment; parameters are float32.
    """

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], float]] = None) -> Optional[float]:
        """Step every parameter that has a gradient; no value is read back from the device."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._step_group(group, parameters)
        return loss

    def _step_group(self, group: Dict[str, Any], parameters: List[torch.Tensor]) -> None:
        (beta1, beta2), lr = group["betas"], group["lr"]
        gradients = [p.grad for p in parameters]
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] += 1
        states = [self.state[p] for p in parameters]
        step = states[0]["step"]
        if any(state["step"] != step for state in states):
            raise ValueError("the parameters of a group must all have taken the same steps")
        means = [state["exp_avg"] for state in states]
        squares = [state["exp_avg_sq"] for state in states]
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        torch._foreach_mul_(means, beta1)
        torch._foreach_add_(means, gradients, alpha=1 - beta1)
        if group["weight_decay"]:
            torch._foreach_add_(parameters, parameters, alpha=-group["weight_decay"] * lr)
        rectification = rectify(step, beta2)
        step_size = lr * (rectification or 1) / (1 - beta1**step)
        if rectification is None:
            torch._foreach_add_(parameters, means, alpha=-step_size)
        else:
            roots = torch._foreach_sqrt(squares)
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_addcdiv_(parameters, means, roots, -step_size)


def rectify(step: int, beta2: float) -> Optional[float]:
    """The paper's r_t times sqrt(1 - beta2^t), or None while the variance cannot be trusted.

    With beta2 0.999 rho stays just below the number of the step, so step 6 is the first rectified
    one (rho 5.99, value 0.0020); the value grows towards 1 over some thousand steps.
    """
    limit = 2 / (1 - beta2) - 1
    power = beta2**step
    rho = limit - 2 * step * power / (1 - power)
    if rho < 5:
        return None
    return math.sqrt((1 - power) * (rho - 4) / (limit - 4) * (rho - 2) / rho * limit / (limit - 2))
