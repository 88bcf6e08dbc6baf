"""Optimizers against torch's own, parameter groups, and the schedule."""

import functools

import numpy as np
import pytest
import torch
import torch_optimizer
import transformers

from detalbert.engine import optim
from detalbert.settings.hparams import StepHParams
from tests.fakes.encoders import make_model


def toy_parameters():
    torch.manual_seed(0)
    return [torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.randn(5))]


def take_steps(optimizer, parameters, steps, first=0):
    """Step with drawn gradients; all weights after each step, [steps, numbers]."""
    trajectory = []
    for step in range(first, first + steps):
        for number, parameter in enumerate(parameters):
            generator = torch.Generator().manual_seed(10 * step + number)
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
        trajectory.append(torch.cat([parameter.detach().flatten() for parameter in parameters]))
    return torch.stack(trajectory)


def split_groups(parameters, weight_decay):
    """The first parameter decays; the others have another rate."""
    first = {"params": parameters[:1], "weight_decay": weight_decay}
    others = {"params": parameters[1:], "weight_decay": 0.0, "lr": 2e-3}
    return [first, others]


def library_radam(groups, **keys):
    for group in groups:
        group["buffer"] = [[None, None, None] for _ in range(10)]  # its groups share one else
    return torch_optimizer.RAdam(groups, **keys)


REFERENCES = {
    "radam": library_radam,
    "adamw": torch.optim.AdamW,
    "lamb": functools.partial(torch_optimizer.Lamb, eps=1e-6, clamp_value=1e6),
}


@pytest.mark.parametrize(("weight_decay", "beta2"), [(0.0, None), (0.1, 0.98)])
@pytest.mark.parametrize("name", REFERENCES)
def test_steps_are_the_librarys_bit_for_bit(name, weight_decay, beta2):
    def trajectory(build):
        parameters = toy_parameters()
        parameters[0].data.mul_(100)
        parameters[1].data.zero_()
        optimizer = build(split_groups(parameters, weight_decay))
        return take_steps(optimizer, parameters, 30)

    def build(groups):
        changes = {} if beta2 is None else {"beta2": beta2}
        return optim.build_optimizer(name, groups, 1e-2, **changes)

    def build_reference(groups):
        return REFERENCES[name](groups, lr=1e-2, betas=(0.9, beta2 or 0.999))

    assert torch.equal(trajectory(build), trajectory(build_reference))


def names_by_group(model, **options):
    """The names of the parameters of each group."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optim.parameter_groups(model, 0.01, **options)
    return [[names[id(parameter)] for parameter in group["params"]] for group in groups]


def test_matrices_and_embeddings_decay_and_nothing_else():
    model = make_model()
    all_names = [name for name, _ in model.named_parameters()]
    decays = [group["weight_decay"] for group in optim.parameter_groups(model, 0.01)]
    assert decays == [0.01, 0.0]

    decayed, undecayed = names_by_group(model)

    assert sorted(decayed + undecayed) == sorted(all_names)
    assert "albert.embeddings.word_embeddings.weight" in decayed
    assert "qa_outputs.weight" in decayed
    assert not [name for name in decayed if "norm" in name.lower() or name.endswith("bias")]
    assert any("full_layer_layer_norm.weight" in name for name in undecayed)


def test_shared_parameters_come_once_and_frozen_ones_not_at_all():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    model["a"].bias.requires_grad_(False)
    decayed, undecayed = optim.parameter_groups(model, 0.01)
    assert len(decayed["params"]) == len(undecayed["params"]) == 1
    assert decayed["params"][0] is model["a"].weight
    assert undecayed["params"][0] is model["b"].bias


PEAK_RATE = 0.3
STEPS = 40
WARMUP = 6


def library_schedule(name, optimizer, min_rate):
    match name:
        case "linear":
            return transformers.get_polynomial_decay_schedule_with_warmup(
                optimizer, WARMUP, STEPS, lr_end=PEAK_RATE * min_rate, power=1.0
            )
        case "cosine":
            return transformers.get_cosine_with_min_lr_schedule_with_warmup(
                optimizer, WARMUP, STEPS, min_lr=PEAK_RATE * min_rate
            )
        case "wsd":
            decay_steps = STEPS // 4
            return transformers.get_wsd_schedule(
                optimizer,
                WARMUP,
                decay_steps,
                num_stable_steps=STEPS - decay_steps - WARMUP,
                min_lr_ratio=min_rate,
            )


def sgd():
    return torch.optim.SGD(split_groups(toy_parameters(), 0.0), lr=PEAK_RATE)


def rates_of(optimizer, schedule):
    """The rates of both groups at every step, and three steps beyond, [steps, 2]."""
    rates = []
    for _ in range(STEPS + 3):
        rates.append(schedule.get_last_lr())
        optimizer.step()
        schedule.step()
    return np.array(rates)


@pytest.mark.parametrize("min_rate", [0.0, 0.1])
@pytest.mark.parametrize("name", ["linear", "cosine", "wsd"])
def test_rates_are_transformers_own_at_every_step(name, min_rate):
    decay_fraction = 0.25 if name == "wsd" else None
    hparams = StepHParams(schedule=name, min_rate=min_rate, decay_fraction=decay_fraction)
    optimizer = sgd()
    schedule = optim.build_scheduler(optimizer, hparams, STEPS, WARMUP)
    reference = sgd()
    reference_schedule = library_schedule(name, reference, min_rate)

    rates = rates_of(optimizer, schedule)

    expected = rates_of(reference, reference_schedule)
    assert rates == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert rates.max() == pytest.approx(PEAK_RATE)
    assert rates[STEPS, 0] == pytest.approx(PEAK_RATE * min_rate)
    for steps in (1, 2):  # shorter than its warm-up and decay
        schedule = optim.build_scheduler(optimizer, hparams, steps, steps)
        schedule.step(steps)
