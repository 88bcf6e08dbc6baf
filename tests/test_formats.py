"""What a release has stored is read by every later version: tests/formats, by tests.make_formats.

Bits differ from one kind of processor to another, so numbers are held to rounding.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from detalbert import __version__
from detalbert.training.folder import step_name
from detalbert.training.manifest import read_manifest
from tests.fakes.runs import official
from tests.make_formats import FORMATS, MIDDLE, answer, column_sums, perplexity, resume

RELEASES = sorted(path.name for path in FORMATS.iterdir())


@pytest.fixture(params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of what a release stored: notes on what was checked are written beside it."""
    return Path(shutil.copytree(FORMATS / request.param, tmp_path / request.param))


def expected(release: Path, kind: str) -> Any:
    """What `kind` gave when it was stored."""
    return json.loads((release / "expected.json").read_text())[kind]


@pytest.mark.parametrize("kind", ["questions", "language_model"])
def test_a_checkpoint_is_resumed(
    release: Path, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    checkpoint = step_name(MIDDLE)
    shutil.copytree(release / kind, tmp_path / "out" / "checkpoints")

    validation = resume(kind, release, tmp_path / "out")

    assert any(checkpoint in line and "resum" in line for line in caplog.messages)
    assert not any("step 3/" in line for line in caplog.messages)
    # Calibration has changed since; its numbers are those of the validation's scores.
    stored = official(expected(release, kind)["validation"])
    assert official(validation) == pytest.approx(stored, rel=1e-4)


@pytest.mark.parametrize("kind", ["documents", "examples"])
def test_shards_hold_the_same_numbers(release: Path, kind: str) -> None:
    assert column_sums(release / kind) == expected(release, "shards")[kind]


@pytest.mark.parametrize("folder", [f"questions/{step_name(MIDDLE)}", "exported_questions"])
def test_questions_are_answered_alike(release: Path, folder: str, tmp_path: Path) -> None:
    stored = expected(release, "questions")["answers"]
    answers = answer(release / folder, release, tmp_path / "answers")
    assert len(answers) == len(stored) == 48
    for name, (text, null_odds) in stored.items():
        assert answers[name] == [text, pytest.approx(null_odds, abs=1e-4)]


@pytest.mark.parametrize(
    "folder", [f"language_model/{step_name(MIDDLE)}", "exported_language_model"]
)
def test_a_text_is_scored_alike(release: Path, folder: str) -> None:
    scores = perplexity(release / folder, release)
    assert scores == pytest.approx(expected(release, "language_model")["perplexity"], rel=1e-4)


def test_a_release_is_what_it_says(release: Path) -> None:
    manifest = read_manifest(release / "questions" / step_name(MIDDLE))
    assert manifest["version"] == release.name
    assert __version__ in RELEASES  # python -m tests.make_formats
