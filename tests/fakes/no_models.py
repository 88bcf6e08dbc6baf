"""Things that are no model, and the line with which `predict.py` refuses one."""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import torch

import predict
from tests.conftest import ROOT
from tests.fakes.encoders import make_model
from tests.fakes.trained import LocalRun


def refused(arguments: list[Any], message: str, capsys: Any) -> None:
    """Assert that predict.py ends with one line, which holds `message`."""
    assert predict.main([str(word) for word in arguments]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("INFO: ")]
    assert len(lines) == 1 and lines[0].startswith("predict.py: error: "), captured.err
    assert message in lines[0], lines[0]
    assert captured.out == ""


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, file: Path = Path("pwned")) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.file}",)


# What Determined unpickles of a checkpoint, the last where the one before is missing.
PICKLES = "state_dict.pth", "trial_state.pkl", "workload_sequencer.pkl"


def plant(checkpoint: Path, name: str, file: Path) -> None:
    """Have a checkpoint touch `file` when Determined unpickles `name` of it."""
    if name == "state_dict.pth":
        state = torch.load(checkpoint / name, weights_only=True)
        torch.save({**state, "more": Evil(file)}, checkpoint / name)
    else:
        (checkpoint / "trial_state.pkl").rename(checkpoint / name)
        numbers = pickle.loads((checkpoint / name).read_bytes())
        (checkpoint / name).write_bytes(pickle.dumps({**numbers, "more": Evil(file)}))


def damaged_checkpoints(checkpoint: Path, folder: Path) -> dict[str, Path]:
    """Copies of a checkpoint without its manifest, a file replaced, by what is said of them."""
    evil, less = folder / "evil.pth", folder / "less.pth"
    torch.save({"models_state_dict": [Evil()]}, evil)
    state = torch.load(checkpoint / "state_dict.pth", weights_only=True)
    state["models_state_dict"][0].popitem()
    torch.save(state, less)
    weights, data, config = "state_dict.pth", "load_data.json", "pretrained/config.json"
    tokenizer = "pretrained/tokenizer.json"
    facts = json.loads((checkpoint / data).read_text())
    split = {"type": "Split", "behavior": "Isolated", "invert": False, "pattern": {"Regex": "("}}

    def changed(name: str, **more: Any) -> bytes:
        return json.dumps({**json.loads((checkpoint / name).read_text()), **more}).encode()

    cases = {
        "holds more than tensors and numbers": (weights, evil.read_bytes()),
        "does not load as a model: ": (weights, evil.read_bytes()[:100]),
        "does not load as a model: mmap": (weights, pickle.dumps(Evil())),
        "Missing key(s) in state_dict": (weights, less.read_bytes()),
        "dropout: unknown key": (data, changed(data, hparams={**facts["hparams"], "dropout": 1})),
        "does not load as a model: 'hparams'": (data, b"{}"),
        "not a checkpoint of this package": (data, None),
        "does not load as a model: 0.0 cannot": (config, changed(config, hidden_size=0)),
        "does not load as a model: Oniguruma": (tokenizer, changed(tokenizer, pre_tokenizer=split)),
    }
    copies = {}
    for number, (message, (name, content)) in enumerate(cases.items()):
        copies[message] = copy = Path(shutil.copytree(checkpoint, folder / f"copy{number}"))
        (copy / "manifest.json").unlink()
        (copy / name).unlink() if content is None else (copy / name).write_bytes(content)
    return copies


def truncated_model(folder: Path) -> Path:
    """A model folder whose weights end early, in a new `folder`."""
    shutil.copytree(ROOT / "embedded" / "albert-tiny", folder)
    os.truncate(folder / "model.safetensors", 1000)
    return folder


def no_models(run: LocalRun, folder: Path) -> dict[str, Any]:
    """Things that are no model, by what is said of them."""
    changed = Path(shutil.copytree(run.checkpoint, folder / "changed"))
    with (changed / "state_dict.pth").open("ab") as file:
        file.write(b"x")
    young = Path(shutil.copytree(run.path, folder / "young"))
    (young / "metrics.json").unlink()
    (folder / "empty" / "checkpoints").mkdir(parents=True)
    make_model("bert").save_pretrained(folder / "bare")
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{}")
    return {
        **damaged_checkpoints(run.checkpoint, folder),
        "no such folder": folder / "nowhere",
        "neither a checkpoint": folder,
        "no such folder; give a checkpoint": run.questions,
        "empty/checkpoints: (none yet)": folder / "empty",
        "no validation yet, so no best; give one of": young,
        "not a complete checkpoint (state_dict.pth is not as it was written)": changed,
        "does not load as a model": folder / "broken",
        "does not load as a model: Error while": truncated_model(folder / "short"),
        "its weights lack 'qa_outputs": ROOT / "embedded" / "albert-tiny",
        "bare: it has no tokenizer": folder / "bare",
        "trial:3:newest: give trial:ID": "trial:3:newest",
    }
