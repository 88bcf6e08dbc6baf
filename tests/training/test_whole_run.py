"""A short run of each workload, whole: its log, scalars and files, beside tests/golden/runs.json.

Other CPUs add in another order: a loss may differ by a hundredth. Scores of answers, which a small
difference may turn, and speeds are left out.
"""

import json
import re

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.conftest import ROOT, settings
from tests.engine.trials import config_file
from tests.fakes.runs import metrics, newest, run
from tests.training.test_dry_run import WORKLOADS

GOLDEN = json.loads((ROOT / "tests" / "golden" / "runs.json").read_text())


def lines_of(shown, folder):
    """The log without numbers that have a point, speeds and what the machine's pace makes it say.
    Sorted, as another thread may write a checkpoint."""
    text = re.sub(r"  (windows/s|tokens/s|left) \S+", "", shown.replace(str(folder), ""))
    text = re.sub(r"\d+\.\d+(e-?\d+)?", "#", text)
    return sorted(line for line in text.splitlines() if ": done in " not in line)


def scalars_of(output):
    """Each number of TensorBoard and of the best validation, by its name."""
    values = {f"best/{name}": [value] for name, value in metrics(output)["best"].items()}
    events = EventAccumulator(str(output / "tensorboard")).Reload()
    for tag in events.Tags()["scalars"]:
        values[tag] = [event.value for event in events.Scalars(tag)]
    return values


def files_of(output):
    """Its files; of the code in it, the folders at its top."""
    names = set()
    for path in output.rglob("*.*"):
        if path.is_file():
            name = path.relative_to(output).as_posix()
            names.add(re.sub("(/code/[^/]+|/events)[/.].*", r"\1", name))
    return sorted(names)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_what_a_run_prints_and_writes(workload, tmp_path, capsys):
    golden = GOLDEN[workload]
    output = tmp_path / "out"
    config = config_file(tmp_path, WORKLOADS[workload], tmp_path / "cache")

    assert run(config, output, *settings(validation_period=12)) == 0

    assert lines_of(capsys.readouterr().err, tmp_path) == golden["log"]
    assert files_of(output) == golden["files"]
    model = json.loads((newest(output) / "pretrained" / "config.json").read_text())
    assert model["architectures"] == golden["architectures"]
    scalars = scalars_of(output)
    for name, values in golden["scalars"].items():
        assert scalars[name] == pytest.approx(values, rel=0.01), name
