"""A trained model as a Hugging Face model folder, with a card that says what it is."""

import dataclasses
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from detalbert.atomic import write_json
from detalbert.errors import UserError
from detalbert.hub import hub_error
from detalbert.inference.model import SETTINGS, Trained
from detalbert.inference.model_card import base_model, card, public


def export(trained: Trained, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (safetensors, fp32), config, tokenizer, settings and card to a new `folder`.

    The folder appears whole or not at all. Raises UserError where it exists or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--export {folder}: it exists; give a new folder")
    aside = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.writing-"))
        trained.model.save_pretrained(aside)
        trained.tokenizer.save_pretrained(aside)
        write_json(aside / SETTINGS, settings(trained))
        (aside / "README.md").write_text(card(trained, license_id), encoding="utf-8")
        os.chmod(aside, 0o755)
        os.replace(aside, folder)
    except (OSError, RuntimeError) as error:  # safetensors raises its own on a full disk
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"--export {folder}: cannot be written ({reason})") from None
    finally:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)


def push(folder: Path, name: str) -> str:
    """Upload an exported folder to the hub (private where it is new); returns its address.

    Raises UserError, or Unavailable where the network failed.
    """
    import huggingface_hub

    try:
        hub = huggingface_hub.HfApi()
        hub.create_repo(name, private=True, exist_ok=True)
        return str(hub.upload_folder(repo_id=name, folder_path=folder))
    except Exception as error:  # whatever HTTP and the hub's client raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise hub_error(error)(
            f"--push-to-hub {name}: not uploaded: {reason}; the folder {folder} is complete"
        ) from None


def settings(trained: Trained) -> dict[str, Any]:
    """What is no part of a library config, for `trained.load` to read again."""
    hparams = {**dataclasses.asdict(trained.hparams), "model": base_model(trained)}
    hparams["model_config"] = None  # config.json has it
    return {
        "hyperparameters": hparams,
        "data": public(trained.data),
        "steps": trained.steps,
        "scores": trained.scores,
    }
