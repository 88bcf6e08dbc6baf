"""What a checkpoint hands over to a restart: threads, budget, compiled layers, and what differs."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from detalbert.engine import cpu, packed_trial, resume
from detalbert.engine.cpu import set_threads
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING, in_soak, settings
from tests.engine.trials import config_file, trial_of
from tests.fakes.runs import newest, run, stop_after
from tests.same_bits import differences


class Machine:
    """Cores of a machine that is not there."""

    def __init__(self):
        self.cores = 1

    def cpu_count(self):
        return self.cores


@pytest.fixture
def machine(monkeypatch):
    """Have this machine be of one core, or as the test sets it."""
    machine = Machine()
    monkeypatch.setattr(cpu, "cpu_count", machine.cpu_count)
    monkeypatch.setattr(resume, "cpu_count", machine.cpu_count)
    yield machine
    torch.set_num_threads(1)


@pytest.mark.parametrize(("others", "threads"), [([8, 8, 8], 6), ([4, 4, 8], 4)])
def test_auto_is_of_the_smallest_machine(others, threads, machine):
    """Of four slots, two a machine; this one gives each of its two 6."""
    machine.cores = 12
    slots = SimpleNamespace(local_size=2, allgather=lambda count: [*others, count])
    assert set_threads("auto", slots) == threads


def logged(name, shown):
    """The lines of the log with this name."""
    return [line for line in shown.splitlines() if f": {name}  " in line]


@pytest.mark.parametrize("base", [TINY, TINY_LM], ids=["qa", "lm"])
def test_a_restart_computes_with_the_threads_that_the_run_began_with(
    base,
    tmp_path,
    cache_dir,
    machine,
    monkeypatch,
    capsys,
):
    config = config_file(tmp_path, base, cache_dir, max_steps=4, reporting_period=2, threads="auto")

    def start(output, cores, status=0):
        """Start or restart a run; what is logged first of its threads."""
        machine.cores = cores
        assert run(config, output) == status
        return logged("threads", capsys.readouterr().err)[0]

    uncut = tmp_path / "uncut"
    cut = tmp_path / "cut"
    start(uncut, cores=2)
    with monkeypatch.context() as patch:
        stop_after(patch, 2)
        line = start(cut, cores=2, status=143)
    assert line.startswith("INFO: threads       2 a slot")

    line = start(cut, cores=1)

    as_it_began = "WARNING: threads       2 a slot (as the run began); slots here: 1, "
    assert line.startswith(as_it_began)
    assert torch.get_num_threads() == 2
    assert differences(uncut, cut) == []


ROUNDING = "the run goes on; its rounding may differ from an uncut one's"


class Start(NamedTuple):
    """A start of a run: when it is stopped, and what is new."""

    stop: int
    machine: dict[str, Any] = {}
    hparams: dict[str, Any] = {}


STARTS = [
    Start(stop=3),
    Start(stop=6),
    Start(
        stop=9,
        machine={"torch": "1.0", "slots": 2},
        hparams={"max_tokens_per_forward": 300},
    ),
    Start(
        stop=12,  # the last step
        machine={"torch": "1.0"},
        hparams={"threads": 2},
    ),
]


@pytest.mark.usefixtures("machine")
def test_a_restart_says_once_what_is_different(tiny_config, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    describe_machine = resume._describe_machine
    restart_lines = []
    thread_lines = []
    for start in STARTS:

        def describe_another(context, changed=start.machine):
            return describe_machine(context) | changed

        with monkeypatch.context() as patch:
            patch.setattr(resume, "_describe_machine", describe_another)
            stop_after(patch, start.stop)
            status = run(tiny_config, out, *settings(**{"threads": 1, **start.hparams}))
        assert status == 143
        shown = capsys.readouterr().err
        restart_lines += logged("restart", shown)
        thread_lines += logged("threads", shown)

    torch_change = f"torch {torch.__version__} -> 1.0"
    assert restart_lines == [
        "WARNING: restart       max_tokens_per_forward 512 -> 300, "
        f"{torch_change}, slots 1 -> 2: {ROUNDING}, as will the masks of dropout",
        f"WARNING: restart       {torch_change}, threads 1 -> 2: {ROUNDING}",
    ]
    assert thread_lines[0] == "INFO: threads       1 a slot (hyperparameters.threads: 1)"

    state = torch.load(newest(out) / "state_dict.pth", weights_only=True)
    saved = state["callbacks"]["handover"]
    assert saved["torch"] == str(torch.__version__)
    assert saved["slots"] == 1
    assert saved["device"].startswith("CPU with ")
    assert saved["Python"].startswith("3.")


SPANS = {"span_fraction": 0.4, "global_batch_size": 16}


@pytest.mark.parametrize(("config", "changes"), [in_soak(TINY, {}), (TINY_PRETRAINING, SPANS)])
def test_what_auto_chose_is_set_again(
    config,
    changes,
    cache_dir,
    tmp_path,
    monkeypatch,
):
    path = config_file(
        tmp_path,
        config,
        cache_dir,
        max_tokens_per_forward="auto",
        num_workers=1,
        max_steps=6,
        **changes,
    )
    uncut = tmp_path / "uncut"
    cut = tmp_path / "cut"
    monkeypatch.setattr(packed_trial, "CPU_TOKENS", 256)
    assert run(path, uncut) == 0
    with monkeypatch.context() as patch:
        stop_after(patch, 3)
        assert run(path, cut) == 143

    monkeypatch.setattr(packed_trial, "CPU_TOKENS", 1024)
    assert run(path, cut) == 0
    assert differences(uncut, cut) == []


class Restored(NamedTuple):
    """What a trial computes with after a restart."""

    max_tokens: int
    compiled_layers: int
    row_multiple: int


def restore(trial, **saved):
    """Restore the trial's own checkpoint with these values."""
    saved = {"trial": None, "not_finite": 0, "threads": 1, **saved}
    own = {"device": trial.resume.machine["device"], "max_tokens_per_forward": trial.max_tokens}
    saved = own | saved
    assert trial.resume.is_own(saved)
    trial.resume.restore(saved)
    return Restored(trial.max_tokens, len(trial.forward.layers), trial.forward.multiple)


def compile_one_layer(trial):
    """Have the trial's forward be as with a compiled layer, which is returned."""
    layer = SimpleNamespace(_compiled_call_impl=print)
    trial.forward.layers = [layer]
    trial.forward.multiple = 64
    return layer


@pytest.mark.usefixtures("machine")
def test_a_restart_restores_threads_and_the_tokens_of_a_forward(tiny_config):
    with trial_of(tiny_config, max_tokens_per_forward="auto") as trial:
        restore(trial, threads=2, max_tokens_per_forward=9000)
        assert (trial.resume.threads, trial.max_tokens) == (2, 9000)

        trial.resume.on_cpu = False  # a GPU keeps this machine's threads
        trial.max_tokens = 4096
        for saved, expected in {9000: 4096, 999: 999}.items():  # of another GPU: the smaller one
            restore(trial, device="V100", threads=1, max_tokens_per_forward=saved)
            assert (trial.resume.threads, trial.max_tokens) == (2, expected)


@pytest.mark.usefixtures("machine")
def test_a_restart_restores_whether_layers_are_compiled(tiny_config):
    with trial_of(tiny_config, max_tokens_per_forward=999) as trial:
        layer = compile_one_layer(trial)
        assert restore(trial, compile=True, row_multiple=64) == Restored(999, 1, 64)
        assert restore(trial, compile=False, row_multiple=1) == Restored(999, 0, 1)
        assert layer._compiled_call_impl is None
