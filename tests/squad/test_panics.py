"""A tokenizer that panics, as one with a hopeless regex does, is one line in every process."""

import json
import shutil
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

HOPELESS = {"type": "Split", "behavior": "Isolated", "invert": False}
HOPELESS |= {"pattern": {"Regex": "(a+)+$"}}
TEXT = "a" * 40 + "!"
SAID = r"^the tokenizer fails on a text \(.*retry-limit.*\); give another$"


def plant(folder: Path) -> Path:
    """Have the tokenizer of a model folder split by a regex that takes exponential time."""
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"pre_tokenizer": HOPELESS}))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(shutil.copytree("embedded/albert-tiny", tmp_path_factory.mktemp("model") / "it"))


def test_every_way_to_tokens_is_one_line(folder: Path) -> None:
    tokenizer: Any = named_tokenizer(str(folder))
    backend = tokenizer.backend_tokenizer
    example = Example("1", "", TEXT, "What?", None)
    for way in (
        lambda: encode(backend, [TEXT]),
        lambda: encode(backend, [TEXT] * 9),
        lambda: encode(backend, [TEXT] * 9, with_offsets=False),
        lambda: build_windows([example], tokenizer),
        lambda: check_questions_fit([example._replace(question=TEXT)], tokenizer, 64, 16),
        lambda: WordEncoder(backend)([TEXT] * 3),
        lambda: encode_prompt(tokenizer, TEXT),
    ):
        with pytest.raises(UserError, match=SAID):
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


def test_predict_ends_with_one_line(local_run: LocalRun, tmp_path: Path, capsys: Any) -> None:
    checkpoint = Path(shutil.copytree(local_run.checkpoint, tmp_path / "checkpoint"))
    (checkpoint / "manifest.json").unlink()
    plant(checkpoint / "pretrained")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": TEXT, "context": TEXT}))
    data = ["--data", tmp_path / "rows.jsonl", "--output-dir", tmp_path / "out"]
    for words in (["--question", TEXT, "--context", TEXT], data):
        assert predict.main(["--model", str(checkpoint), *map(str, words)]) == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("predict.py: error: ") and "the tokenizer fails on a text" in line
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]


def test_a_worker_of_a_corpus_ends_the_run_with_one_line(
    folder: Path, tmp_path: Path, capsys: Any
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(configured(TINY_PRETRAINING, tmp_path / "cache")))
    (tmp_path / "text.txt").write_text(f"{TEXT}\n" * 50)
    sets = {"data.text": tmp_path / "text.txt", "data.tokenizer": folder}
    words = [word for key, value in sets.items() for word in ("--set", f"{key}={value}")]
    assert "fails on a text" in refusal(capsys, config, tmp_path / "out", *words)
