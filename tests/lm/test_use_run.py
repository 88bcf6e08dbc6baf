"""`predict.py` with a run of train.py: its validation again, prompts, what is refused."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

import predict
from detalbert.inference import find
from lm.inference.load import open_source
from tests.conftest import ROOT, TINY_LM, Once, configured
from tests.fakes.checkpoints import CheckpointMaster, Stored
from tests.fakes.no_models import refused
from tests.fakes.runs import newest, run

SCORES = ("loss", "perplexity", "bits_per_byte", "baseline_bits_per_byte", "accuracy")


@pytest.fixture(scope="module")
def trained(once: Once, cache_dir: Path) -> Path:
    """The output directory of a run, beside the text that it validated on."""
    return once("lm", functools.partial(fill, cache_dir)) / "out"


def fill(cache_dir: Path, folder: Path) -> None:
    text, held = folder / "text.jsonl", folder / "held.jsonl"
    for target, page in ((text, ROOT / "README.md"), (held, ROOT / "lm" / "README.md")):
        rows = [json.dumps({"text": part}) for part in page.read_text().split("\n## ")]
        target.write_text("\n".join(rows))
    values = configured(TINY_LM, cache_dir, max_validation_windows=None, checkpoint_period=6)
    values["data"] |= {"documents": str(text), "validation_documents": str(held)}
    values["data"]["shard_mib"] = 0.001
    (folder / "lm.yaml").write_text(yaml.safe_dump(values))
    assert run(folder / "lm.yaml", folder / "out") == 0


def best(output: Path) -> dict[str, float]:
    return json.loads((output / "metrics.json").read_text())["best"]


def say(capsys: Any, *words: Any) -> str:
    capsys.readouterr()
    assert predict.main([str(word) for word in words]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_perplexity_is_the_validation_of_the_run(trained: Path, capsys: Any) -> None:
    text = trained.parent / "held.jsonl"
    scores = json.loads(say(capsys, "--model", trained, "--perplexity", text, "--json"))
    expected = best(trained)
    assert {name: scores[name] for name in SCORES} == {name: expected[name] for name in SCORES}
    shown = say(capsys, "--model", trained, "--perplexity", text)
    assert f"loss                    {expected['loss']:.6g}\n" in shown
    assert f"windows                 {scores['windows']}\n" in shown and scores["windows"] > 50


@pytest.mark.parametrize("kind", ["exported", "moved", "fetched"])
def test_a_model_brings_its_windows_along(
    kind: str, trained: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is: what the windows are is known."""
    checkpoint, expected = find.find(str(trained)), best(trained)
    model: Any = tmp_path / "model"
    if kind == "exported":
        say(capsys, "--model", checkpoint, "--export", model)
    elif kind == "moved":
        shutil.copytree(checkpoint, model)
    else:
        shutil.copytree(checkpoint, tmp_path / "storage" / UUID)
        (tmp_path / "storage" / UUID / "manifest.json").unlink()
        model = "trial:7"
    with Master(trained, tmp_path) as master:
        master.log_in(monkeypatch, tmp_path)
        folder = find.find(str(model))
        text = trained.parent / "held.jsonl"
        scores = json.loads(say(capsys, "--model", model, "--perplexity", text, "--json"))
    source = open_source(folder)
    assert source.hparams.max_seq_length == 32 and source.steps == expected["steps"]
    assert source.scores["loss"] == expected["loss"]
    if kind == "moved":  # where shards and rows end is not known, and makes a difference
        assert scores["loss"] == pytest.approx(expected["loss"], rel=0.1)
    else:
        assert {name: scores[name] for name in SCORES} == {name: expected[name] for name in SCORES}


UUID = "aaaaaaaa-1111-2222-3333-444444444444"


class Master(CheckpointMaster):
    """Knows the checkpoint, how it was trained and what it scored."""

    def __init__(self, run: Path, folder: Path) -> None:
        self.config, self.best = yaml.safe_load((run / "config.yaml").read_text()), best(run)
        storage = folder / "storage"
        kind = {"type": "shared_fs", "host_path": str(storage)}
        super().__init__([Stored(UUID, storage / UUID, 0.0, 1)], kind)

    def _describe(self, item: Stored) -> Any:
        described = super()._describe(item)
        described.metadata = {"steps_completed": self.best["steps"]}
        described.training.hparams = self.config["hyperparameters"]
        described.training.experimentConfig |= {"data": self.config["data"]}
        described.training.validationMetrics.avgMetrics = self.best
        return described


def test_a_prompt_is_gone_on_with(trained: Path, capsys: Any, monkeypatch: Any) -> None:
    words = ["--model", trained, "--prompt", "The ship", "--max-new-tokens", "15", "--seed", "3"]
    reply = json.loads(say(capsys, *words, "--json"))
    assert reply["prompt"] == "The ship" and reply["seed"] == 3 and len(reply["text"]) > 5
    assert say(capsys, *words) == say(capsys, *words) == reply["text"] + "\n"
    assert say(capsys, *words[:-1], "4") != reply["text"] + "\n"
    exported = trained.parent / "exported"
    say(capsys, "--model", trained, "--export", exported)
    assert say(capsys, "--model", exported, *words[2:]) == reply["text"] + "\n"


def test_what_is_refused(trained: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "short.txt").write_text("A ship.")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    damaged = Path(shutil.copytree(newest(trained), tmp_path / "damaged"))
    (damaged / "pretrained" / "config.json").write_text("{}")
    evil = Path(shutil.copytree(newest(trained), tmp_path / "evil"))
    (evil / ".metadata").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    for name in ("manifest.json", "tensors.json"):
        (evil / name).unlink()
    mine: dict[str, list[Any]] = {
        "--question: ": ["--question", "a", "--context", "b"],
        "is a language model; leave it out": ["--data", "generated"],
        "--threshold: ": ["--prompt", "a", "--threshold", "1"],
        "--interactive: ": ["--interactive"],
        "then serve DIR with `transformers serve` or vLLM": ["--serve"],
        "--prompt.top_p: 0.0 must be greater than 0": ["--prompt", "a", "--top-p", "0"],
        "--seed: only --prompt takes it": ["--perplexity", "generated", "--seed", "1"],
        "the prompt has ": ["--prompt", "Ab-" * 100],
        "tokens fill no window of 32 + 1": ["--perplexity", tmp_path / "short.txt"],
        "--perplexity: no.txt: no such file": ["--perplexity", "no.txt"],
        "latin.txt": ["--perplexity", tmp_path / "latin.txt"],
        "--prompt --export: give exactly one of": ["--prompt", "a", "--export", "x"],
    }
    for message, words in mine.items():
        refused(["--model", trained, *words], message, capsys)
    refused(["--model", damaged, "--prompt", "a"], "config.json is not as it was written", capsys)
    (damaged / "manifest.json").unlink()
    refused(["--model", damaged, "--prompt", "a"], "does not load as a language model", capsys)
    refused(["--model", evil, "--prompt", "a"], "holds more than tensors: os.system", capsys)
    answering = ["--model", "embedded/albert-tiny"]
    refused([*answering, "--prompt", "a"], "--prompt: embedded/albert-tiny is no language", capsys)
    refused([*answering, "--perplexity", "a"], "is no language model; leave it out", capsys)
