"""A run's metrics.json and config.yaml that are lost, or hold any other JSON."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import hypothesis
import pytest
from hypothesis import strategies as st

from detalbert.errors import UserError
from detalbert.inference.find import find, read_json
from detalbert.training.checkpoints import check_same_run
from detalbert.training.manifest import write_manifest
from detalbert.training.metrics import RunMetrics
from detalbert.training.metrics_file import read_metrics
from detalbert.training.timeline import list_checkpoints
from tests.conftest import max_examples
from tests.fakes.runs import metrics, run


def scores_of(output: Path) -> dict[str, Any]:
    return {key: metrics(output)[key] for key in ("best", "last")}


def test_lost_metrics_of_a_finished_run_are_written_at_a_start(
    finished: Path, copied: Path
) -> None:
    scores = scores_of(copied)
    (copied / "metrics.json").unlink()
    assert run(finished / "tiny.yaml", copied) == 0
    assert scores_of(copied) == scores
    assert "starts" not in metrics(copied)["throughput"]  # nobody knows the earlier ones


OTHER_JSON = [
    "[]",
    "5",
    '"x"',
    "{",
    "",
    '{"throughput": null}',
    '{"throughput": {"starts": 5}}',
    '{"best": [], "throughput": {"starts": [1]}}',
    '{"throughput": {"starts": [{"start": "2026-10-01T10:00:00Z", "end": 5}]}}',
    '{"throughput": {"starts": [{"end": "2026-10-01T10:00:00Z"}]}}',
    '{"last": {"f1": 1.0}, "throughput": {}}',
    "[" * 100_000,
]


@pytest.mark.parametrize("content", OTHER_JSON)
def test_other_json_in_the_place_of_metrics(
    content: str, finished: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = scores_of(copied)
    (copied / "metrics.json").write_text(content)
    assert find(str(copied)) == list_checkpoints(copied / "checkpoints")[-1][1]

    assert run(finished / "tiny.yaml", copied) == 0

    assert "metrics.json is not that of a run: it is now in" in capsys.readouterr().err
    assert scores_of(copied) == scores
    assert (copied / "previous-1" / "metrics.json").read_text() == content


KEYS = st.sampled_from(["throughput", "best", "last", "starts", "start", "end", "steps", "f1"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@hypothesis.given(content=JSON)
@max_examples(300)
def test_any_json_is_read_as_metrics_or_not_at_all(
    content: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp() / "metrics"
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.json"
    path.write_text(json.dumps(content))
    run_metrics = RunMetrics(folder, {"metric": "f1", "smaller_is_better": False})
    run_metrics.follow(Mock(slots=1), stalls=[])
    run_metrics.validations = [{"steps": 4, "f1": 1.0}]
    run_metrics.begin()
    assert read_metrics(folder) is not None

    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="checkpoints"):
        find(str(folder))
    assert is_read(path) == isinstance(content, dict)


def is_read(path: Path) -> bool:
    """Whether a file is read as a mapping; it is refused in one line else."""
    try:
        read_json(path)
    except UserError:
        return False
    return True


@hypothesis.given(content=JSON)
@max_examples(100)
def test_a_run_s_config_of_any_content_names_what_differs_or_nothing(
    content: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The names in it are only for the line that refuses another run."""
    folder = tmp_path_factory.getbasetemp() / "config"
    checkpoint = folder / "checkpoints" / "step-00000004"
    checkpoint.mkdir(parents=True, exist_ok=True)
    saved_run = {"data.train": "0" * 64}
    write_manifest(checkpoint, {"steps": 4, "run": saved_run, "validations": []}, {})
    for config in (content, {"data": content}, {"hyperparameters": content}):
        (folder / "config.yaml").write_text(json.dumps(config))
        with pytest.raises(UserError, match="^data.train: "):
            check_same_run(checkpoint, {"data.train": "1" * 64}, {}, {"data": {"train": "mine"}})
