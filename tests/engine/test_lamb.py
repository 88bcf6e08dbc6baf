"""LAMB beside the published code's rule: which tensors it adapts, and how far biases move."""

import copy

import torch

from detalbert.engine import optim
from tests.fakes.encoders import make_model


def published_steps(model, gradients, rate, decay):
    """Step in float64 by Google's rule for ALBERT (google-research/albert, lamb_optimizer.py).

    Its list of what is neither decayed nor adapted is by name: layer norms and biases.
    """
    moments = {}
    for step_gradients in gradients:
        for (name, parameter), gradient in zip(
            model.named_parameters(), step_gradients, strict=True
        ):
            mean, square = moments.get(name, (torch.zeros_like(parameter),) * 2)
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            moments[name] = mean, square

            update = mean / (square.sqrt() + 1e-6)
            is_excluded = "norm" in name.lower() or "bias" in name
            ratio = torch.tensor(1.0)
            if not is_excluded:
                update = update + decay * parameter
                if parameter.norm() > 0 and update.norm() > 0:
                    ratio = parameter.norm() / update.norm()
            parameter.sub_(rate * ratio * update)


def test_steps_are_those_of_the_published_code():
    ours = make_model()
    theirs = copy.deepcopy(ours).double()
    torch.manual_seed(3)
    gradients = []
    for _ in range(200):
        gradients.append([torch.randn_like(parameter) for parameter in ours.parameters()])

    groups = optim.parameter_groups(ours, 0.01, optimizer="lamb")
    lamb = optim.build_optimizer("lamb", groups, lr=2e-3)
    for step_gradients in gradients:
        for parameter, gradient in zip(ours.parameters(), step_gradients, strict=True):
            parameter.grad = gradient.clone()
        lamb.step()
    with torch.no_grad():
        published_steps(theirs, gradients, rate=2e-3, decay=0.01)

    for parameter, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        error = (parameter.double() - other).norm() / other.norm()
        assert error < 1e-6
