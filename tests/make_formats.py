"""Store what this version writes, small, in tests/formats/VERSION; run it once for each release.

    python -m tests.make_formats

`tests/test_formats.py` holds every later version to read it. A folder has, for questions and for a
language model: a checkpoint in the middle of a run (without the copy of the code, which nothing
reads), its config, an export, and token shards. `expected.json` says what they must give.
"""

import contextlib
import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import predict
import train
from detalbert import __version__
from detalbert.corpus.__main__ import main as write_shards
from detalbert.corpus.reader import KINDS
from detalbert.integrity import SUM
from detalbert.settings.text import TextConfig
from detalbert.squad import world
from detalbert.training.folder import step_name
from detalbert.training.manifest import read_manifest, write_manifest
from tests.conftest import TINY, TINY_LM, TINY_PRETRAINING, configured

FORMATS = Path(__file__).parent / "formats"
MIDDLE, LAST = 6, 12  # steps: of the stored checkpoint, and of the whole run
SMALL = {"threads": 1, "checkpoint_period": MIDDLE, "validation_period": MIDDLE}
LINES = {"article": "line", "validation_fraction": 0.2}


def make(folder: Path) -> None:
    """Write everything into `folder`, which does not exist."""
    folder.mkdir(parents=True)
    questions = world.generate("validation", seed=3, paragraphs=8)
    (folder / "questions.json").write_text(json.dumps(questions))
    lines = []
    for article in world.generate("train", seed=3, paragraphs=40)["data"]:
        lines += [paragraph["context"] for paragraph in article["paragraphs"]]
    (folder / "text.txt").write_text("\n".join(lines))
    work = folder / "work"
    shards = make_shards(folder, work)
    expected = {
        "questions": make_questions(folder, work),
        "language_model": make_language_model(folder, work),
        "shards": shards,
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    shutil.rmtree(work)
    for left_over in folder.rglob(".*"):
        left_over.unlink()  # locks, and notes on what this machine has checked


def make_questions(folder: Path, work: Path) -> dict[str, Any]:
    """Train a tiny ALBERT on questions; return its validation and its answers."""
    config = configured(TINY, work / "cache", **SMALL)
    config["data"] |= dict.fromkeys(("train", "validation"), "questions.json")
    validation = train_and_store("questions", config, folder, work)
    answers = answer(folder / "questions" / step_name(MIDDLE), folder, work / "answers")
    return {"validation": validation, "answers": answers}


def make_language_model(folder: Path, work: Path) -> dict[str, Any]:
    """Train a tiny Llama on the stored tokens; return its validation and a perplexity."""
    config = configured(TINY_LM, work / "cache", **SMALL)
    config["data"] = {"shards": "documents", "shuffle_shards": 2, "cache_dir": str(work / "cache")}
    validation = train_and_store("language_model", config, folder, work)
    scores = perplexity(folder / "language_model" / step_name(MIDDLE), folder)
    return {"validation": validation, "perplexity": scores}


def make_shards(folder: Path, work: Path) -> dict[str, dict[str, str]]:
    """Write the shards of a language model and of an encoder; return the sums of their columns."""
    work.mkdir()
    sums = {}
    for name, config, key in (
        ("documents", TINY_LM, "documents"),
        ("examples", TINY_PRETRAINING, "text"),
    ):
        values = configured(config, work / "cache")
        values["data"] |= {key: str(folder / "text.txt"), **LINES}
        path = work / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        assert write_shards([str(path), "--output", str(folder / name), "--workers", "1"]) == 0
        sums[name] = column_sums(folder / name)
    return sums


def column_sums(folder: Path) -> dict[str, str]:
    """Return a sum of the values of each column of shards, by split and name."""
    kind = KINDS[folder.name]
    sums = {}
    for split in ("train", "validation"):
        shards = kind(str(folder), split, TextConfig(shards=str(folder)))
        for name in shards.columns(0):
            parts = [shards.columns(shard)[name] for shard in range(len(shards.shards))]
            values = np.concatenate(parts).astype(np.int64)
            sums[f"{split}: {name}"] = hashlib.sha256(values.tobytes()).hexdigest()
    return sums


def train_and_store(
    name: str, config: dict[str, Any], folder: Path, work: Path
) -> dict[str, float]:
    """Train to the end; store the checkpoint of the middle and its export in `folder`. Returns the
    validation at the end.
    """
    config["checkpoint_storage"] = {"save_trial_latest": 2}
    validation = run(name, config, folder, work / name)

    # Nothing reads the copy of the code, which would be most of the bytes.
    source = work / name / "checkpoints" / step_name(MIDDLE)
    target = folder / name / step_name(MIDDLE)
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("code"))

    # Determined notes the config with its addresses: those of this machine go.
    note = target / "load_data.json"
    if note.exists():
        note.write_text(note.read_text().replace(f"{folder}/", ""))
    manifest = read_manifest(target)
    for key in ("format", "version", "files", SUM):
        del manifest[key]
    (target / "manifest.json").unlink()
    write_manifest(target, manifest)

    export = ["--model", str(target), "--export", str(folder / f"exported_{name}")]
    assert predict.main(export) == 0
    return validation


def run(name: str, config: dict[str, Any], folder: Path, output: Path) -> dict[str, float]:
    """Store a config, whose data lies in `folder`, and train it; return its last validation."""
    stored = {**config, "data": {**config["data"]}}
    del stored["data"]["cache_dir"]
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(stored))
    return resume(name, folder, output)


def resume(name: str, folder: Path, output: Path) -> dict[str, float]:
    """Train a stored config to the end, from what is in `output`; return its last validation."""
    path = folder / f"{name}.yaml"
    data = yaml.safe_load(path.read_text())["data"]
    words = ["--config", str(path), "--output-dir", str(output)]
    words += ["--set", f"data.cache_dir={output.parent / 'cache'}"]
    for key in {"train", "validation", "shards"} & data.keys():
        words += ["--set", f"data.{key}={folder / data[key]}"]
    assert train.main(words) == 0
    validation = json.loads((output / "metrics.json").read_text())["last"]
    assert validation["steps"] == LAST
    return validation


def answer(model: Path, folder: Path, output: Path) -> dict[str, Any]:
    """Return answers and null odds of the stored questions, by question ID."""
    words = ["--model", model, "--data", folder / "questions.json", "--output-dir", output]
    assert predict.main([str(word) for word in words]) == 0
    answers = json.loads((output / "predictions.json").read_text())
    odds = json.loads((output / "null_odds.json").read_text())
    return {name: [answers[name], odds[name]] for name in answers}


def perplexity(model: Path, folder: Path) -> dict[str, float]:
    """Return the scores of the stored text."""
    words = ["--model", str(model), "--perplexity", str(folder / "text.txt"), "--json"]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert predict.main(words) == 0
    return json.loads(printed.getvalue())


if __name__ == "__main__":
    make(FORMATS / __version__)
