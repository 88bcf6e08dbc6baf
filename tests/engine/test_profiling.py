"""`profile_steps`: what it prints and leaves, and that the run does not notice."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.profiler import ProfilerActivity

from detalbert.engine import profiling
from detalbert.engine.profiling import StepProfile, describe, summarize
from detalbert.errors import UserError
from tests import chaos
from tests.conftest import TINY_PRETRAINING, Train, configured, settings
from tests.fakes.encoders import compile_with
from tests.fakes.runs import refusal, run, stop_after

CPU = torch.device("cpu")
LINE = re.compile(
    r"profile of (\d+) steps: ([\d.]+) ms a step, CPU operators ([\d.]+) ms \(\d+%\), waiting for "
    r"the loader ([\d.]+) ms \(\d+%\), all-reduce ([\d.]+) ms \(\d+%\); trace: (.*)"
)


def read(out: str) -> tuple[list[float], Path]:
    """The line's numbers: steps, and milliseconds."""
    (found,) = LINE.finditer(out)
    *numbers, path = found.groups()
    return [float(number) for number in numbers], Path(path)


@pytest.fixture(params=["fine-tuning", "pretraining"])
def config(request: Any, tiny_config: Path, cache_dir: Path) -> Path:
    if request.param == "pretraining":
        tiny_config.write_text(yaml.safe_dump(configured(TINY_PRETRAINING, cache_dir)))
    return tiny_config


def test_a_profile_is_written_and_changes_no_bit(config: Path, tmp_path: Path, capsys: Any) -> None:
    """Five steps with a report, a checkpoint and a validation among them, and one loader worker."""
    common = settings(max_tokens_per_forward=256, num_workers=1)
    assert run(config, tmp_path / "without", *common) == 0
    assert "profile of" not in capsys.readouterr().err
    assert run(config, tmp_path / "with", *common, *settings(profile_steps=5)) == 0
    shown = capsys.readouterr().err
    (steps, wall, busy, loader, exchange), path = read(shown)
    assert steps == 5 and 0 < busy < wall and 0 < loader < wall and exchange == 0
    assert busy + loader < 1.01 * wall
    assert "USDT" not in shown
    assert path.parent == tmp_path / "with" / "tensorboard" and path.name.endswith(".pt.trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    assert describe(summarize(events)) in shown
    assert sum(event["name"] == "step" for event in events) == 5
    assert chaos.differences(tmp_path / "without", tmp_path / "with") == []


def test_compiled_layers_are_seen(
    tiny_config: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_with("aot_eager", monkeypatch)
    arguments = settings(profile_steps=2, max_steps=6, compile=True)
    assert run(tiny_config, tmp_path / "out", *arguments) == 0
    (steps, wall, busy, *_), path = read(capsys.readouterr().err)
    assert steps == 2 and 0 < busy < wall
    names = {event["name"] for event in json.loads(path.read_text())["traceEvents"]}
    assert any("Compiled" in name for name in names)


def test_two_slots_leave_one_trace_and_their_exchange_is_seen(
    tiny_config: Path, tmp_path: Path, train: Train
) -> None:
    done = train(
        "--config", tiny_config, "--output-dir", tmp_path / "out", *settings(profile_steps=4),
        processes=2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (steps, wall, busy, _, exchange), path = read(done.stderr)
    assert steps == 4 and 0 < exchange < wall and busy + exchange < 1.01 * wall
    assert list(path.parent.glob("*.json")) == [path]


@pytest.mark.parametrize(
    ("value", "said"),
    [(-1, "must be at least 0"), ("some", "expected a whole number"), (10, "the run's 12")],
)
def test_a_bad_number_is_one_line(
    value: Any, said: str, tiny_config: Path, tmp_path: Path, capsys: Any
) -> None:
    error = refusal(capsys, tiny_config, tmp_path / "out", *settings(profile_steps=value))
    assert "error: hyperparameters.profile_steps: " in error and said in error


def test_a_run_stopped_in_its_profile_goes_on_without(
    tiny_config: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few steps are left for another one, and that is no mistake."""
    arguments = tiny_config, tmp_path / "out", *settings(profile_steps=9)
    with monkeypatch.context() as patch:
        stop_after(patch, 6)
        assert run(*arguments) == 0
    assert "profile of" not in capsys.readouterr().err
    assert run(*arguments) == 0
    assert "no profile: 6 steps are left, 12 are needed" in capsys.readouterr().err


def event(cat: str, name: str, begin: float, end: float) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin}


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MARKS = [
    event("user_annotation", LOADER, 0, 1_000),
    event("user_annotation", "step", 1_000, 4_000),
    event("user_annotation", "report", 5_000, 5_000),
    event("user_annotation", LOADER, 6_000, 7_000),  # of a validation
    event("user_annotation", LOADER, 20_000, 23_000),
    event("user_annotation", "step", 23_000, 26_000),
    event("user_annotation", "device", 26_000, 28_000),
]


def test_gpu_time_counts_kernels_once_and_nothing_of_a_validation() -> None:
    found = summarize([
        *MARKS,
        event("kernel", "gemm", 1_500, 4_500),
        event("kernel", "gemm of another stream", 2_000, 3_000),
        event("kernel", "of a validation", 6_000, 19_000),
        event("kernel", "ncclDevKernel_AllReduce_Sum_f32", 4_000, 5_000),
        event("gpu_memcpy", "", 24_000, 27_000),
        event("cpu_op", "aten::mm", 1_000, 4_000),
        {"ph": "M", "name": "process_name"},
    ])  # fmt: skip
    assert found["device"] == "GPU" and found["steps"] == 2
    assert found["wall"] == (5 + 8) / 2 and found["loader"] == (1 + 3) / 2
    assert found["all_reduce"] == 1 / 2
    assert found["busy"] == pytest.approx((2.5 + 3) / 2)  # 1.5 to 4.0, 24 to 27


def test_cpu_time_is_operators_outside_of_the_loader_and_the_exchange() -> None:
    found = summarize([
        *MARKS,
        event("user_annotation", "all_reduce", 3_000, 3_500),
        event("cpu_op", "aten::stack", 500, 900),  # in the loader, that runs here
        event("cpu_op", "aten::linear", 1_000, 2_000),
        event("cpu_op", "aten::mm", 1_200, 1_900),
        event("cpu_op", "c10d::allreduce_", 3_100, 3_400),
    ])  # fmt: skip
    assert found["device"] == "CPU operators" and found["busy"] == 1 / 2
    assert found["all_reduce"] == 0.5 / 2


class Recorder:
    """In place of torch's profiler: leaves MARKS as the trace, and says when it runs."""

    def __init__(self, activities: Any) -> None:
        self.calls = [activities]

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(json.dumps({"traceEvents": MARKS}))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Recorder], list[str]]:
    """The profilers that were made, and the marks that were set while one ran."""
    made: list[Recorder] = []
    marks: list[str] = []

    def make(activities: Any) -> Recorder:
        made.append(Recorder(activities))
        return made[-1]

    def mark(name: str) -> Any:
        marks.append(name)
        return contextlib.nullcontext()

    monkeypatch.setattr(profiling, "profile", make)
    monkeypatch.setattr(profiling, "record_function", mark)
    return made, marks


def take(profile: StepProfile, steps: int) -> None:
    for _ in range(steps):
        with profile.step():
            pass


def test_the_steps_after_the_warm_up_are_recorded(
    recorded: tuple[list[Recorder], list[str]], tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level("INFO", "detalbert")
    made, marks = recorded
    (tmp_path / "new").mkdir()
    folder = tmp_path / "new" / "tensorboard" / "traces"
    profile = StepProfile(2, 5, folder, CPU)
    take(profile, 2)
    assert not made
    take(profile, 1)
    assert made[0].calls == [[ProfilerActivity.CPU], "start"] and not marks
    take(profile, 1)
    profile.on_training_workload_end()
    assert marks == ["step", "report"] and caplog.messages == []
    take(profile, 3)
    profile.on_trial_shutdown()
    assert made[0].calls[2:] == ["stop"] and len(made) == 1
    assert marks == ["step", "report", "step", "device"]
    (path,) = folder.iterdir()
    assert caplog.messages == [f"{describe(summarize(MARKS))}; trace: {path}"]


def test_a_run_that_ends_in_its_profile_stops_it(
    recorded: tuple[list[Recorder], list[str]], tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level("INFO", "detalbert")
    profile = StepProfile(2, 5, tmp_path, CPU)
    profile.on_trial_shutdown()  # before it began: nothing to stop
    take(profile, 4)
    profile.on_trial_shutdown()
    assert recorded[0][0].calls[1:] == ["start", "stop"] and not list(tmp_path.iterdir())
    for steps, left, said in ((0, 4, []), (2, 4, ["no profile: 4 steps are left, 5 are needed"])):
        profile = StepProfile(steps, left, tmp_path, CPU)
        take(profile, 9)
        assert len(recorded[0]) == 1 and caplog.messages == said


def test_a_trace_that_cannot_be_written_is_one_line(
    recorded: tuple[list[Recorder], list[str]], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    profile = StepProfile(1, 4, tmp_path / "file" / "traces", CPU)
    take(profile, 3)
    with pytest.raises(UserError, match="hyperparameters.profile_steps: .*cannot write the trace"):
        take(profile, 1)


def test_a_profile_is_told_on_one_line() -> None:
    times = {"wall": 8.0, "busy": 6.0, "loader": 1.0, "all_reduce": 0.5}
    assert describe({"steps": 5, "device": "GPU", **times}) == (
        "profile of 5 steps: 8.0 ms a step, GPU 6.0 ms (75%), waiting for the loader 1.0 ms (12%), "
        "all-reduce 0.5 ms (6%)"
    )


def test_events_may_come_in_any_order_and_overlap() -> None:
    """Three steps of 10 ms without a pause; 2 of 4 ms between two reports of one place count."""
    marks = []
    for begin in (0, 10_000, 20_000):
        marks += [
            event("user_annotation", LOADER, begin, begin + 1_000),
            event("user_annotation", "another's", begin + 1_100, begin + 1_200),
            event("user_annotation", "step", begin + 1_300, begin + 8_000),
        ]
    reports = [event("user_annotation", "report", at, at) for at in (8_000, 9_000)]
    device = event("user_annotation", "device", 28_000, 30_000)
    kernels = [
        event("kernel", "long", 2_000, 9_500),  # to 8,000: the report ends what counts
        event("kernel", "inside", 3_000, 4_000),
        event("gpu_memset", "overlaps", 12_000, 16_000),
        event("kernel", "overlaps", 14_000, 18_000),
        event("kernel", "NCCL", 17_000, 19_000),
        event("kernel", "late", 29_000, 40_000),
    ]
    found = summarize([*kernels[::-1], device, *reports[::-1], *marks[::-1]])
    assert found["steps"] == 3 and found["wall"] == pytest.approx(28 / 3)
    assert found["loader"] == pytest.approx(1.0) and found["all_reduce"] == pytest.approx(2 / 3)
    assert found["busy"] == pytest.approx((6 + 5 + 1) / 3)  # 2 to 8, 12 to 17, 29 to 30
