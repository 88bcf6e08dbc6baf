"""What no run wrote in an output directory: refused by name before any work, and untouched."""

import json
import os

import hypothesis
import pytest
from hypothesis import strategies as st

from detalbert import files
from detalbert.errors import UserError
from detalbert.files import check_own, write_own
from detalbert.squad.answers import Answers
from detalbert.training.folder import (
    FILES,
    PREDICTIONS,
    read_metrics,
    read_predictions,
    replace_predictions,
)
from tests.conftest import max_examples
from tests.fakes.runs import refusal, steps_of

MINE = '{"mine": {"best": 1.0}}'


def contents(output):
    files = (path for path in output.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if path.name != ".lock"}


@pytest.mark.parametrize("options", [(), ("--resume", "never"), ("--dry-run",)], ids=str)
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_no_run_wrote_is_refused_and_untouched(
    name, options, finished, copied, tmp_path, capsys
):
    """In a new folder, and in place of the file that a run wrote there."""
    (tmp_path / "new").mkdir()
    for output in (tmp_path / "new", copied):
        (output / name).write_text(MINE)
        before = contents(output)
        line = refusal(capsys, finished / "tiny.yaml", output, *options)
        assert f"{output / name}: it would be replaced" in line
        assert "; move it away, or give another --output-dir" in line
        assert contents(output) == before


def test_a_folder_or_link_is_no_file_of_a_run(tmp_path):
    (tmp_path / "metrics.json").mkdir()
    with pytest.raises(UserError, match=r"metrics\.json: it would"):
        check_own(tmp_path, FILES, cure="")
    os.rmdir(tmp_path / "metrics.json")
    (tmp_path / "config.yaml").symlink_to("nowhere")
    with pytest.raises(UserError, match=r"config\.yaml: it would"):
        check_own(tmp_path, FILES, cure="")


def test_a_checkpoint_s_name_on_another_folder(finished, copied, capsys):
    notes = copied / "checkpoints" / "step-00000099" / "notes.txt"
    notes.parent.mkdir()
    notes.write_text(MINE)
    assert f"{notes.parent}: no run wrote it" in refusal(capsys, finished / "tiny.yaml", copied)
    assert notes.read_text() == MINE
    assert steps_of(copied) == [6, 8, 12, 99]


@pytest.mark.parametrize("renamed", [False, True])
def test_a_kill_before_or_after_the_rename_leaves_a_file_of_the_run(renamed, tmp_path, monkeypatch):
    replace = os.replace

    def kill(source, target):
        is_last = target.name == "report.html"
        if renamed or not is_last:
            replace(source, target)
        if is_last:
            raise KeyboardInterrupt

    write_own(tmp_path, {"report.html": "old"})
    monkeypatch.setattr(files.os, "replace", kill)
    with pytest.raises(KeyboardInterrupt):
        write_own(tmp_path, {"report.html": "new"})
    assert (tmp_path / "report.html").read_text() == ("new" if renamed else "old")
    check_own(tmp_path, FILES, cure="")


@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_kill_between_the_renames_leaves_no_predictions_of_two_steps(name, tmp_path, monkeypatch):
    replace = os.replace

    def kill(source, target):
        if target.name == name:
            raise KeyboardInterrupt
        replace(source, target)

    first, second = (
        Answers({"q": text}, null_odds={"q": 0.0}, spans={"q": text}, probabilities={})
        for text in ("first", "second")
    )
    replace_predictions(tmp_path, first, step=1)
    assert read_predictions(tmp_path, step=1) == first
    monkeypatch.setattr(files.os, "replace", kill)
    with pytest.raises(KeyboardInterrupt):
        replace_predictions(tmp_path, second, step=2)
    for step, answers in ((1, first), (2, second)):
        assert read_predictions(tmp_path, step=step) in (None, answers)


KEYS = st.sampled_from(["throughput", "best", "last", "starts", "start", "end", "steps", "f1"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
VALIDATION = st.none() | st.fixed_dictionaries({"steps": st.integers(0, 9)})
METRICS = st.fixed_dictionaries(
    {"throughput": st.just({"starts": []})}, optional={"best": VALIDATION, "last": VALIDATION}
)


@hypothesis.given(whole=METRICS, other=JSON | st.just({"throughput": {"starts": []}}))
@max_examples(300)
def test_any_json_is_read_as_metrics_or_not_at_all(whole, other, tmp_path_factory):
    output = tmp_path_factory.getbasetemp() / "metrics"
    output.mkdir(exist_ok=True)
    (output / "metrics.json").write_text(json.dumps(whole))
    assert read_metrics(output) == whole
    (output / "metrics.json").write_text(json.dumps(other))
    metrics = read_metrics(output)
    if metrics is not None:
        assert isinstance(metrics["throughput"]["starts"], list)
        for key in ("best", "last"):
            assert metrics.get(key) is None or isinstance(metrics[key]["steps"], int)
