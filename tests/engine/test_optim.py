"""Optimizers against torch's own, parameter groups, and the schedule."""

import functools

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
    trajectory = []
    for step in range(first, first + steps):
        for number, parameter in enumerate(parameters):
            draw = torch.Generator().manual_seed(10 * step + number)
            parameter.grad = torch.randn(parameter.shape, generator=draw)
        optimizer.step()
        trajectory.append(torch.cat([p.detach().flatten() for p in parameters]))
    return torch.stack(trajectory)


def split_groups(parameters, weight_decay, name=""):
    other = {"params": parameters[1:], "weight_decay": 0.0, "lr": 2e-3}
    hidden = {"momentum": 0.95} if name == "muon" else {}
    return [{"params": parameters[:1], "weight_decay": weight_decay, **hidden}, other]


class TorchMuon:
    """torch's Muon for the first group, its AdamW for the others."""

    def __init__(self, groups, lr, betas):
        first = torch.optim.Muon(groups[:1], lr=lr, adjust_lr_fn="match_rms_adamw")
        self.both = first, torch.optim.AdamW(groups[1:], lr=lr, betas=betas)

    def step(self):
        for optimizer in self.both:
            optimizer.step()


REFERENCES = {
    "radam": lambda groups, **how: torch_optimizer.RAdam(
        [{"buffer": [[None, None, None] for _ in range(10)], **group} for group in groups], **how
    ),
    "adamw": torch.optim.AdamW,
    "muon": TorchMuon,
    "lamb": functools.partial(torch_optimizer.Lamb, eps=1e-6, clamp_value=1e6),
}


@pytest.mark.parametrize("weight_decay, given", [(0.0, ()), (0.1, (0.98,))])
@pytest.mark.parametrize("name", REFERENCES)
def test_steps_are_the_librarys_bit_for_bit(name, weight_decay, given):
    betas, trajectories = (0.9, *(given or (0.999,))), []
    for make in (
        lambda groups: optim.build_optimizer(name, groups, 1e-2, *given),
        lambda groups: REFERENCES[name](groups, lr=1e-2, betas=betas),
    ):
        parameters = toy_parameters()
        parameters[0].data.mul_(100)
        parameters[1].data.zero_()
        groups = split_groups(parameters, weight_decay, name)
        trajectories.append(take_steps(make(groups), parameters, 30))
    assert torch.equal(*trajectories)


def test_what_has_no_gradient_is_skipped():
    parameters = toy_parameters()
    radam = optim.build_optimizer("radam", [{"params": parameters}], 1e-2)
    first, second = (p.detach().clone() for p in parameters)
    parameters[0].square().sum().backward()
    radam.step()
    assert not torch.equal(parameters[0], first)
    assert torch.equal(parameters[1], second) and len(radam.state) == 1


def sum_of(state):
    return sum(moment for name, moment in state.items() if name != "step")


@pytest.mark.parametrize("name", REFERENCES)
def test_a_step_is_kept_or_changes_neither_weights_nor_moments(name):
    """Steps 2 and 7 of eight are not kept: before and after RAdam's first rectified one."""
    ours, theirs = toy_parameters(), toy_parameters()
    guarded = optim.build_optimizer(name, split_groups(ours, 0.1, name), 1e-2)
    plain = optim.build_optimizer(name, split_groups(theirs, 0.1, name), 1e-2)
    for step in range(9):
        before = [p.clone() for p in ours]
        if step in (2, 7):
            moments = [sum_of(guarded.state[p]) for p in ours]
            guarded.keep = torch.tensor(False)
            for parameter in ours:
                parameter.grad = torch.zeros_like(parameter)
            guarded.step()
            assert all(map(torch.equal, ours, before))
            for parameter, other, kept in zip(ours, theirs, moments, strict=True):
                assert torch.equal(sum_of(guarded.state[parameter]), kept)
                plain.state[other]["step"] += 1
            continue
        guarded.keep = torch.tensor(True)
        kept, usual = take_steps(guarded, ours, 1, step), take_steps(plain, theirs, 1, step)
        assert torch.equal(kept, usual) and not torch.equal(ours[0], before[0])


def test_matrices_and_embeddings_decay_and_nothing_else():
    model = make_model()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = optim.parameter_groups(model, 0.01)
    assert [group["weight_decay"] for group in groups] == [0.01, 0.0]
    decayed, kept = ({names[id(p)] for p in group["params"]} for group in groups)
    assert decayed | kept == set(names.values()) and not decayed & kept
    assert sum(len(group["params"]) for group in groups) == len(names)
    assert {"albert.embeddings.word_embeddings.weight", "qa_outputs.weight"} <= decayed
    assert any("full_layer_layer_norm.weight" in name for name in kept)
    assert not [name for name in decayed if "norm" in name.lower() or name.endswith("bias")]
    muon, *others = optim.parameter_groups(model, 0.01, optimizer="muon")
    assert {names[id(p)] for p in muon["params"]} == {n for n in decayed if ".albert_layers." in n}
    rest = [decayed - {names[id(p)] for p in muon["params"]}, kept]
    assert [{names[id(p)] for p in group["params"]} for group in others] == rest
    # Shared ones come once, frozen ones not at all.
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    model["a"].bias.requires_grad_(False)
    decay, keep = optim.parameter_groups(model, 0.01)
    assert [id(p) for p in decay["params"]] == [id(model["a"].weight)]
    assert [id(p) for p in keep["params"]] == [id(model["b"].bias)]


SCHEDULES = {
    "linear": lambda o, w, t, low: (
        transformers.get_polynomial_decay_schedule_with_warmup(o, w, t, lr_end=0.3 * low, power=1.0)
        if low
        else transformers.get_linear_schedule_with_warmup(o, w, t)
    ),
    "cosine": lambda o, w, t, low: (
        transformers.get_cosine_with_min_lr_schedule_with_warmup(o, w, t, min_lr=0.3 * low)
        if low
        else transformers.get_cosine_schedule_with_warmup(o, w, t)
    ),
    "wsd": lambda o, w, t, low: transformers.get_wsd_schedule(
        o, w, t // 4, num_stable_steps=t - t // 4 - w, min_lr_ratio=low
    ),
}


@pytest.mark.parametrize("low", [0.0, 0.1])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_transformers_own_at_every_step(name, low):
    decay = 0.25 if name == "wsd" else None
    hparams = StepHParams(schedule=name, min_rate=low, decay_fraction=decay)
    rates = []
    for make in (
        lambda optimizer: optim.build_scheduler(optimizer, hparams, 40, 6),
        lambda optimizer: SCHEDULES[name](optimizer, 6, 40, low),
    ):
        optimizer = torch.optim.SGD(split_groups(toy_parameters(), 0.0), lr=0.3)
        schedule, found = make(optimizer), []
        for _ in range(43):
            found += schedule.get_last_lr()
            optimizer.step()
            schedule.step()
        rates.append(found)
    assert rates[0] == pytest.approx(rates[1], rel=1e-12, abs=1e-15)
    assert [max(rates[0]), rates[0][80]] == pytest.approx([0.3, 0.3 * low])
    for total in (1, 2):  # shorter than its warm-up and decay
        schedule = optim.build_scheduler(optimizer, hparams, total, total)
        schedule.step(total)


def test_steps_come_from_the_data_and_the_epochs():
    for windows, batch, epochs, most, fraction, expected in (
        (132_198, 48, 2, None, 0.1, (5509, 551)),
        (132_198, 256, 2.0, None, 0.0, (1033, 0)),
        (96, 48, 2, None, 0.5, (4, 2)),
        (100, 10, 1.1, None, 0.0, (11, 0)),
        (132_198, 48, 2, 100, 0.29, (100, 29)),  # 100 * 0.29 is 28.999999999999996
    ):
        keys = {"epochs": epochs, "max_steps": most, "warmup_fraction": fraction}
        hparams = StepHParams(global_batch_size=batch, **keys)
        assert optim.plan_steps(hparams, windows) == expected


@pytest.mark.parametrize("name", REFERENCES)
def test_a_step_reads_nothing_back(name):
    """A tensor on torch's meta device has no values: whoever asks for one gets an error."""
    parameters = [torch.nn.Parameter(p.detach().to("meta")) for p in toy_parameters()]
    optimizer = optim.build_optimizer(name, split_groups(parameters, 0.1, name), 1e-2)
    for _ in range(6):  # the sixth is radam's first rectified one
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        optimizer.step()
    assert len(optimizer.state) == len(parameters)
