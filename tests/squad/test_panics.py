"""A tokenizer that panics, as one with a hopeless regex does, is one line in every process."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import predict
from detalbert.corpus.words import WordEncoder
from detalbert.errors import Panic, UserError, as_user_error, panics_raised
from detalbert.squad.encoding import encode
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.squad.windows import Example, build_windows, check_questions_fit
from lm.inference.complete import encode_prompt
from tests.conftest import TINY_PRETRAINING, configured
from tests.fakes.runs import refusal
from tests.fakes.trained import LocalRun

# A regex that takes exponential time for TEXT.
HOPELESS = {
    "type": "Split",
    "behavior": "Isolated",
    "invert": False,
    "pattern": {"Regex": "(a+)+$"},
}
TEXT = "a" * 40 + "!"
PROBLEM = r"^the tokenizer fails on a text \(.*retry-limit.*\); give another$"


def plant(folder: Path) -> Path:
    """Have the tokenizer of a model folder split by a regex that takes exponential time."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"] = HOPELESS
    file.write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "it"
    return plant(shutil.copytree("embedded/albert-tiny", folder))


@pytest.mark.slow
def test_every_way_to_tokens_is_one_line(folder: Path) -> None:
    tokenizer: Any = named_tokenizer(str(folder))
    backend = tokenizer.backend_tokenizer
    in_context = Example("1", "", context=TEXT, question="What?", answers=None)
    in_question = in_context._replace(question=TEXT)

    ways: list[Callable[[], Any]] = [
        lambda: encode(backend, [TEXT]),
        lambda: encode(backend, [TEXT] * 9),
        lambda: encode(backend, [TEXT] * 9, with_offsets=False),
        lambda: build_windows([in_context], tokenizer),
        lambda: check_questions_fit([in_question], tokenizer, max_seq_length=64, doc_stride=16),
        lambda: WordEncoder(backend)([TEXT] * 3),
        lambda: encode_prompt(tokenizer, TEXT),
    ]
    for way in ways:
        with pytest.raises(UserError, match=PROBLEM):
            way()


class PanicException(BaseException):
    """A stand-in, of the name that PyO3 gives its own."""


def test_a_panic_of_any_library_is_an_error_and_nothing_else_is() -> None:
    with pytest.raises(Panic, match="^so it is$"), panics_raised():
        raise PanicException("so it is")
    converted = as_user_error(lambda error: UserError(f"it: {error}"))
    with pytest.raises(UserError, match="^it: so$"), converted:
        raise PanicException("so")
    for other in (KeyboardInterrupt, SystemExit, ValueError):
        with pytest.raises(other), panics_raised():
            raise other


def test_predict_ends_with_one_line(
    local_run: LocalRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = Path(shutil.copytree(local_run.checkpoint, tmp_path / "checkpoint"))
    (checkpoint / "manifest.json").unlink()
    plant(checkpoint / "pretrained")
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": TEXT, "context": TEXT}))
    output = tmp_path / "out"

    one_question = ["--question", TEXT, "--context", TEXT]
    a_file = ["--data", str(rows), "--output-dir", str(output)]
    for words in (one_question, a_file):
        assert predict.main(["--model", str(checkpoint), *words]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("predict.py: error: ")
        assert "the tokenizer fails on a text" in line
    assert not output.exists() or not list(output.glob("*.json"))


@pytest.mark.slow
def test_a_worker_of_a_corpus_ends_the_run_with_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(configured(TINY_PRETRAINING, tmp_path / "cache")))
    text = tmp_path / "text.txt"
    text.write_text(f"{TEXT}\n" * 50)

    error = refusal(
        capsys,
        config,
        tmp_path / "out",
        "--set",
        f"data.text={text}",
        "--set",
        f"data.tokenizer={folder}",
    )

    assert "fails on a text" in error
