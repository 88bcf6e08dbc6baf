"""What a checkpoint hands over: threads to the restart, weights alone to another trial."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from detalbert.engine import cpu, resume, token_budget
from detalbert.engine.cpu import set_threads
from detalbert.errors import UserError
from tests.conftest import TINY, TINY_PRETRAINING, settings
from tests.engine.trials import config_file, one_step, trial_of
from tests.fakes.runs import newest, run, stop_after
from tests.same_bits import PARTS, differences, of_value


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, float], None]]:
    """`machine(cores, idle)`: have it be of so many cores, so many of them idle."""

    def have(cores: int, idle: float) -> None:
        for module in (cpu, resume):
            monkeypatch.setattr(module, "count_cores", lambda: cores)
        monkeypatch.setattr(cpu, "idle_cores", lambda: idle)

    yield have
    torch.set_num_threads(1)


def test_auto_counts_idle_cores_of_the_smallest_machine(machine: Any) -> None:
    for cores, idle, fresh, expected in (
        (2, 2.0, True, 2),
        (2, 1.9, True, 2),  # somebody's moment is no neighbour
        (2, 1.0, True, 1),
        (2, 0.1, True, 1),  # at least 1
        (2, 0.1, False, 2),  # of a restart the checkpoint knows; else every core
        (64, 40.2, True, 40),
    ):
        machine(cores, idle)
        assert set_threads("auto", fresh=fresh) == expected == torch.get_num_threads()
        assert set_threads(3, fresh=fresh) == 3 == torch.get_num_threads()
    machine(16, 12.0)
    for others, expected in (([8, 8, 8], 6), ([4, 4, 8], 4)):  # of four slots, two a machine
        slots = SimpleNamespace(local_size=2, allgather=lambda mine, others=others: [*others, mine])
        assert set_threads("auto", slots) == expected


def said(name: str, shown: str) -> list[str]:
    return [line for line in shown.splitlines() if f": {name}  " in line]


def test_a_restart_computes_with_the_threads_that_the_run_began_with(
    tmp_path: Path, cache_dir: Path, machine: Any, monkeypatch: Any, capsys: Any
) -> None:
    more = ["--set", f"data.cache_dir={cache_dir}", "--set", "data.max_train_examples=100"]
    more += ["--set", "data.max_validation_examples=9"]
    more += settings(max_steps=4, num_workers=0, reporting_period=2)

    def start(cores: int, name: str, status: int = 0) -> list[str]:
        machine(cores, float(cores))
        assert run(Path("configs/local.yaml"), tmp_path / name, *more) == status
        return said("threads", capsys.readouterr().err)

    start(2, "uncut")
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        assert start(2, "cut", 143)[0].startswith("INFO: threads       2 a slot")
    (line,) = start(1, "cut")
    assert line.startswith(
        "WARNING: threads       2 a slot (as the run began); this machine has 1 "
    )
    assert torch.get_num_threads() == 2
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []


LAST = "the run goes on; its rounding may differ from an uncut one's"


@pytest.mark.usefixtures("machine")
def test_a_restart_says_once_what_is_different(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    describe, out, has, counts = resume._describe_machine, tmp_path / "out", [], []
    for stop, new, more in (
        (3, {}, {}),
        (6, {}, {}),
        (9, {"torch": "1.0", "slots": 2}, {"max_tokens_per_forward": 300}),
        (12, {"torch": "1.0"}, {"allreduce_dtype": "bf16", "threads": 2}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(resume, "_describe_machine", lambda c, new=new: describe(c) | new)
            stop_after(patch, stop)
            status = run(tiny_config, out, *settings(**{"threads": 1, **more}))
            assert status == (143 if stop < 12 else 0)
        shown = capsys.readouterr().err
        has += said("restart", shown)
        counts += said("threads", shown)
    kept = torch.load(newest(out) / "state_dict.pth", weights_only=True)["callbacks"]["handover"]
    start, was = "WARNING: restart       ", f"torch {torch.__version__} -> 1.0"
    budget, masks = "max_tokens_per_forward 512 -> 300", "as will the masks of dropout"
    assert has == [
        f"{start}{budget}, {was}, slots 1 -> 2: {LAST}, {masks}",
        f"{start}allreduce_dtype fp32 -> bf16, {was}, threads 1 -> 2: {LAST}",
    ]
    assert kept["torch"] == str(torch.__version__) and kept["slots"] == 1
    assert kept["device"].startswith("CPU with ") and kept["Python"].startswith("3.")
    assert counts[0] == "INFO: threads       1 a slot (hyperparameters.threads: 1)"


SPANS = {"span_fraction": 0.4, "global_batch_size": 16}


@pytest.mark.parametrize("config, more", [(TINY, {}), (TINY_PRETRAINING, SPANS)])
def test_what_auto_chose_is_set_again(
    config: Any, more: Any, cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"max_tokens_per_forward": "auto", "num_workers": 1, "max_steps": 6, **more}
    path = config_file(tmp_path, config, cache_dir, **values)
    for budget, stop, name in ((256, 9, "uncut"), (256, 3, "cut"), (1024, 9, "cut")):
        monkeypatch.setattr(token_budget, "ON_A_CPU", budget)
        with monkeypatch.context() as patch:
            stop_after(patch, stop)
            assert run(path, tmp_path / name) == (143 if stop < 6 else 0)
    assert differences(tmp_path / "uncut", tmp_path / "cut") == []


def restored(trial: Any, **kept: Any) -> Any:
    saved = {"trial": None, "warmup": 2, "not_finite": 0, "threads": 1, **kept}
    assert trial.resume.is_own(saved)
    trial.resume.restore(saved)
    return trial.max_tokens, len(trial.forward.layers), trial.forward.multiple


@pytest.mark.usefixtures("machine")
def test_what_a_restart_restores(tiny_config: Path, caplog: Any) -> None:
    layer = SimpleNamespace(_compiled_call_impl=print)
    with trial_of(tiny_config, max_tokens_per_forward="auto") as trial:
        # A GPU keeps this machine's threads.
        for trial.resume.on_cpu, kept, count in ((False, 2, 1), (True, 2, 2), (True, 1, 1)):
            restored(trial, threads=kept)
            assert trial.resume.threads == count
        here = trial.resume.machine["device"]
        for device, kept, budget in ((here, 9000, 9000), ("V100", 9000, 4096), ("V100", 999, 999)):
            trial.max_tokens = 4096
            assert restored(trial, device=device, max_tokens_per_forward=kept) == (budget, 0, 1)
        trial.forward.layers, trial.forward.multiple = [layer], 64
        assert restored(trial, compile=True, row_multiple=64)[1:] == (1, 64)
        assert restored(trial, compile=False, row_multiple=1)[1:] == (0, 1)
        assert layer._compiled_call_impl is None
        trial.forward.layers, trial.forward.multiple = [layer], 64
        asked = {"compile": True, "max_tokens_per_forward": 999}
        trial.resume.hparams = dataclasses.replace(trial.hparams, **asked)
        kept = {"compile": False, "row_multiple": 64, "max_tokens_per_forward": 500}
        assert restored(trial, **kept) == (999, 1, 64)
        trial.resume.on_trial_startup(4, "some uuid")
        trial.resume.on_training_start()
        changed = "max_tokens_per_forward 500 -> 999, compile False -> True"
        assert caplog.messages == [f"restart       {changed}: {LAST}"]


@pytest.fixture
def state(finished: Path) -> dict[str, Any]:
    """The checkpoint at the end of a run, as Determined reads it: the rate has come down to 0."""
    return torch.load(newest(finished / "out") / "state_dict.pth", weights_only=True)


def test_of_another_trial_only_the_weights_are_taken(
    tiny_config: Path, state: dict[str, Any], caplog: Any
) -> None:
    caplog.set_level("INFO", "detalbert")
    state["callbacks"]["handover"] = {"threads": 2, "trial": 7}  # this one has none
    assert state["lr_schedulers_state_dict"][0]["_last_lr"] == [0.0, 0.0]
    with trial_of(tiny_config) as trial:
        before = copy.deepcopy((trial.optimizer.state_dict(), trial.schedule.state_dict()))
        load(trial, state, 0)
        after = trial.optimizer.state_dict(), trial.schedule.state_dict()
        assert of_value(before) == of_value(after)
        assert trial.resume.threads == 1
        assert "warm start    another trial's weights" in caplog.text
        trial.meter.reset()
        one_step(trial)
        assert len(trial.optimizer.state) > 0  # it moves


def test_a_checkpoint_of_the_same_trial_is_left_as_it_is(tiny_config: Path, state: Any) -> None:
    same = copy.deepcopy(state)
    with trial_of(tiny_config) as trial:
        trial.resume.on_trial_startup(12, "some uuid")
        trial.resume.on_checkpoint_load_start(same)
        assert all(of_value(same[part]) == of_value(state[part]) for part in PARTS)


def test_a_checkpoint_that_names_no_trial_gives_its_weights_alone(
    tiny_config: Path, state: dict[str, Any]
) -> None:
    del state["callbacks"]["handover"]  # of other code for the same model
    with trial_of(tiny_config) as trial:
        trial.resume.on_trial_startup(0, "some uuid")
        trial.resume.on_checkpoint_load_start(state)
    assert state["optimizers_state_dict"][0]["state"] == {}


def load(trial: Any, state: dict[str, Any], step: int) -> None:
    """What Determined does with a checkpoint, for a start at `step`."""
    trial.resume.on_trial_startup(step, "some uuid")
    trial.resume.on_checkpoint_load_start(state)
    trial.model.load_state_dict(state["models_state_dict"][0])
    trial.optimizer.load_state_dict(state["optimizers_state_dict"][0])
    trial.schedule.load_state_dict(state["lr_schedulers_state_dict"][0])


def goes_on(trial: Any, state: dict[str, Any]) -> dict[str, float]:
    """The rate, decay and betas of the first step after `state`, which is of step 12 of 12."""
    load(trial, state, 12)
    trial.resume.on_training_start()
    group = trial.optimizer.param_groups[0]
    return {key: group[key] for key in ("lr", "weight_decay", "betas")}


def test_a_continued_trial_follows_its_config_of_now(tiny_config: Path, state: Any) -> None:
    with trial_of(tiny_config) as trial:
        loaded = trial.optimizer.state_dict()["param_groups"][0]
        expected = {"lr": 0.0, "weight_decay": loaded["weight_decay"], "betas": loaded["betas"]}
        assert goes_on(trial, copy.deepcopy(state)) == expected
        peak = trial.hparams.learning_rate()
    changed = {"max_steps": 24, "base_learning_rate": 0.5, "weight_decay": 0.25, "beta2": 0.9}
    with trial_of(tiny_config, **changed) as trial:
        rate = trial.hparams.learning_rate() * (12 / (24 - trial.warmup))
        expected = {"lr": rate, "weight_decay": 0.25, "betas": (0.9, 0.9)}
        assert goes_on(trial, copy.deepcopy(state)) == expected
        assert rate > peak
        trial.schedule.step()
        assert trial.optimizer.param_groups[1]["lr"] == pytest.approx(rate * 11 / 12)


def test_a_source_of_another_model_is_refused_in_one_line(tiny_config: Path, state: Any) -> None:
    state["callbacks"]["handover"]["trial"] = 7
    (weights,) = state["models_state_dict"]
    name = next(iter(weights))
    with trial_of(tiny_config) as trial:
        trial.resume.on_trial_startup(0, "some uuid")
        fewer = {key: value for key, value in weights.items() if key != name}
        more = ({**weights, key: torch.zeros(3)} for key in (name, "more"))
        for changed in (*more, fewer):
            with pytest.raises(UserError, match="the source checkpoint is not of this model"):
                trial.resume.on_checkpoint_load_start({**state, "models_state_dict": [changed]})
