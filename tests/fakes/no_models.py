"""Things that are no model, and the line with which `predict.py` refuses one."""

import os
import pickle
import shutil
from pathlib import Path

import torch

import predict
from tests.conftest import ROOT
from tests.fakes.encoders import make_model


def refused(arguments, message, capsys):
    """Assert that predict.py ends with one line, which holds `message`."""
    capsys.readouterr()
    assert predict.main([str(word) for word in arguments]) == 2
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith("INFO: ")]
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("predict.py: error: ")
    assert message in lines[0], lines[0]
    assert captured.out == ""


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, file=Path("pwned")):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


# What Determined unpickles of a checkpoint, the last where the one before is missing.
PICKLES = ("state_dict.pth", "trial_state.pkl", "workload_sequencer.pkl")


def plant(checkpoint, name, file):
    """Have a checkpoint touch `file` when Determined unpickles `name` of it."""
    if name == "state_dict.pth":
        state = torch.load(checkpoint / name, weights_only=True)
        torch.save({**state, "more": Evil(file)}, checkpoint / name)
    else:
        (checkpoint / "trial_state.pkl").rename(checkpoint / name)
        numbers = pickle.loads((checkpoint / name).read_bytes())
        (checkpoint / name).write_bytes(pickle.dumps({**numbers, "more": Evil(file)}))


def unlisted_copy(checkpoint, folder):
    """Copy a checkpoint to a new `folder`, without its manifest."""
    shutil.copytree(checkpoint, folder)
    (folder / "manifest.json").unlink()
    return folder


def truncated_model(folder):
    """Write a model folder whose weights end early, in a new `folder`."""
    shutil.copytree(ROOT / "embedded" / "albert-tiny", folder)
    weights = folder / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    return folder


def no_models(run, folder):
    """Return things that are no model, by what is said of them."""
    with_code = unlisted_copy(run.checkpoint, folder / "with code")
    large = torch.zeros(1_000_000)  # as many bytes as the model has, at least
    torch.save({"models_state_dict": [Evil(), large]}, with_code / "state_dict.pth")

    less = unlisted_copy(run.checkpoint, folder / "less")
    state = torch.load(less / "state_dict.pth", weights_only=True)
    state["models_state_dict"][0].popitem()
    torch.save(state, less / "state_dict.pth")

    changed = Path(shutil.copytree(run.checkpoint, folder / "changed"))
    with (changed / "state_dict.pth").open("ab") as file:
        file.write(b"x")

    make_model("bert").save_pretrained(folder / "bare")
    return {
        "holds more than tensors and numbers": with_code,
        "Missing key(s) in state_dict": less,
        "not a complete checkpoint (state_dict.pth is not as it was written)": changed,
        "no such folder; give a checkpoint": folder / "nowhere",
        "neither a checkpoint": folder,
        "does not load as a model: Error while": truncated_model(folder / "short"),
        "its weights lack 'qa_outputs": ROOT / "embedded" / "albert-tiny",
        "bare: it has no tokenizer": folder / "bare",
    }
