"""Whether two runs end in the same bits."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from detalbert.engine import safe_load  # noqa: F401 (lets torch.load read checkpoints)
from detalbert.training.checkpoints import list_checkpoints

PARTS = ("models_state_dict", "optimizers_state_dict", "lr_schedulers_state_dict")


def hashes(output: Path) -> dict[str, str]:
    """SHA-256 by part of a run's last checkpoint, of its scores and of what it predicted."""
    found = of_checkpoint(list_checkpoints(output / "checkpoints")[-1][1])
    for name in ("predictions.json", "null_odds.json"):
        if (output / name).is_file():  # fine-tuning leaves them
            found[name] = of_file(output / name)
    metrics = json.loads((output / "metrics.json").read_text())
    return {**found, "best": of_value(metrics["best"]), "last": of_value(metrics["last"])}


def differences(one: Path, other: Path) -> list[str]:
    """The names of what differs between the ends of two runs."""
    mine, its = hashes(one), hashes(other)
    return sorted(key for key in mine.keys() | its.keys() if mine.get(key) != its.get(key))


def of_checkpoint(folder: Path) -> dict[str, str]:
    """SHA-256 by part: weights, optimizer and schedule, or the files of a sharded model."""
    files = {path.name: of_file(path) for path in sorted(folder.glob("*.distcp"))}
    if files:
        return files
    state = torch.load(folder / "state_dict.pth", weights_only=True)
    return {part: of_value(state[part]) for part in PARTS}


def of_value(value: Any) -> str:
    """SHA-256 of nested dicts and lists of tensors, numbers and text."""
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.cpu().numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest.update(str(key).encode())
            _add(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(digest, item)
    else:
        digest.update(repr(value).encode())


def of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
