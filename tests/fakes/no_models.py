"""Things that are no model, and the line with which `predict.py` refuses one."""

import json
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import predict
from tests.conftest import ROOT
from tests.fakes.encoders import make_model
from tests.fakes.trained import LocalRun


def refused(arguments: Sequence[Any], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Assert that predict.py ends with one line, which holds `message`."""
    capsys.readouterr()
    assert predict.main([str(word) for word in arguments]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("INFO: ")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("predict.py: error: ")
    assert message in lines[0]
    assert captured.out == ""


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, file: Path = Path("pwned")) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


# What Determined unpickles of a checkpoint, the last where the one before is missing.
PICKLES = ("state_dict.pth", "trial_state.pkl", "workload_sequencer.pkl")


def plant(checkpoint: Path, name: str, file: Path) -> None:
    """Have a checkpoint touch `file` when Determined unpickles `name` of it."""
    if name == "state_dict.pth":
        state = torch.load(checkpoint / name, weights_only=True)
        torch.save({**state, "more": Evil(file)}, checkpoint / name)
    else:
        (checkpoint / "trial_state.pkl").rename(checkpoint / name)
        numbers = pickle.loads((checkpoint / name).read_bytes())
        (checkpoint / name).write_bytes(pickle.dumps({**numbers, "more": Evil(file)}))


def with_values(path: Path, **values: Any) -> bytes:
    """Return a JSON file with other values."""
    return json.dumps({**json.loads(path.read_text()), **values}).encode()


def damages(checkpoint: Path, folder: Path) -> dict[str, tuple[Path, bytes | None]]:
    """Return files of a checkpoint and what to replace them by (None: nothing), by what is said.

    Args:
        folder: for files of weights.
    """
    weights = checkpoint / "state_dict.pth"
    data = checkpoint / "load_data.json"
    config = checkpoint / "pretrained" / "config.json"
    tokenizer = checkpoint / "pretrained" / "tokenizer.json"

    with_code = folder / "evil.pth"
    torch.save({"models_state_dict": [Evil()]}, with_code)
    without_one = folder / "less.pth"
    state = torch.load(weights, weights_only=True)
    state["models_state_dict"][0].popitem()
    torch.save(state, without_one)
    hparams = json.loads(data.read_text())["hparams"]
    wrong_regex = {
        "type": "Split",
        "behavior": "Isolated",
        "invert": False,
        "pattern": {"Regex": "("},
    }

    return {
        "holds more than tensors and numbers": (weights, with_code.read_bytes()),
        "does not load as a model: ": (weights, with_code.read_bytes()[:100]),
        "does not load as a model: mmap": (weights, pickle.dumps(Evil())),
        "Missing key(s) in state_dict": (weights, without_one.read_bytes()),
        "dropout: unknown key": (data, with_values(data, hparams={**hparams, "dropout": 1})),
        "does not load as a model: 'hparams'": (data, b"{}"),
        "not a checkpoint of this package": (data, None),
        "does not load as a model: 0.0 cannot": (
            config,
            with_values(config, hidden_size=0),
        ),
        "does not load as a model: Oniguruma": (
            tokenizer,
            with_values(tokenizer, pre_tokenizer=wrong_regex),
        ),
    }


def damaged_checkpoints(checkpoint: Path, folder: Path) -> dict[str, Path]:
    """Return copies of a checkpoint without its manifest, a file replaced, by what is said."""
    copies = {}
    for number, (message, damage) in enumerate(damages(checkpoint, folder).items()):
        path, content = damage
        copy = Path(shutil.copytree(checkpoint, folder / f"copy{number}"))
        (copy / "manifest.json").unlink()
        target = copy / path.relative_to(checkpoint)
        if content is None:
            target.unlink()
        else:
            target.write_bytes(content)
        copies[message] = copy
    return copies


def truncated_model(folder: Path) -> Path:
    """Write a model folder whose weights end early, in a new `folder`."""
    shutil.copytree(ROOT / "embedded" / "albert-tiny", folder)
    os.truncate(folder / "model.safetensors", 1000)
    return folder


def no_models(run: LocalRun, folder: Path) -> dict[str, Any]:
    """Return things that are no model, by what is said of them."""
    changed = Path(shutil.copytree(run.checkpoint, folder / "changed"))
    with (changed / "state_dict.pth").open("ab") as file:
        file.write(b"x")
    (folder / "empty" / "checkpoints").mkdir(parents=True)
    make_model("bert").save_pretrained(folder / "bare")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{}")
    return {
        **damaged_checkpoints(run.checkpoint, folder),
        "no such folder": folder / "nowhere",
        "neither a checkpoint": folder,
        "no such folder; give a checkpoint": run.questions,
        "empty: no complete checkpoint in": folder / "empty",
        "not a complete checkpoint (state_dict.pth is not as it was written)": changed,
        "does not load as a model": folder / "broken",
        "does not load as a model: Error while": truncated_model(folder / "short"),
        "its weights lack 'qa_outputs": ROOT / "embedded" / "albert-tiny",
        "bare: it has no tokenizer": folder / "bare",
        "trial:3:newest: no such folder": "trial:3:newest",
    }
