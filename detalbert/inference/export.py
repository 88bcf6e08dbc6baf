"""A trained model as a Hugging Face model folder, with a card that says what it is."""

import dataclasses
from pathlib import Path
from typing import Any

from detalbert.atomic import whole_folder, write_json
from detalbert.errors import UserError, first_line
from detalbert.hub import hub_error
from detalbert.inference.model import SETTINGS, Trained
from detalbert.inference.model_card import base_model, card, public
from detalbert.integrity import SUMS, write_facts


def export(trained: Trained, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (safetensors, fp32), config, tokenizer, settings and card to a new `folder`.

    The folder appears whole or not at all. Raises UserError where it exists or cannot be written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--export {folder}: it exists; give a new folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as aside:
            trained.model.save_pretrained(aside)
            for file in aside.glob("*.safetensors"):
                file.chmod(0o644)  # safetensors makes it readable for one user
            trained.tokenizer.save_pretrained(aside)
            write_json(aside / SETTINGS, settings(trained))
            write_facts(aside / SUMS, {}, "*.safetensors")
            (aside / "README.md").write_text(card(trained, license_id), encoding="utf-8")
    except (OSError, RuntimeError) as error:  # safetensors raises its own on a full disk
        raise UserError(f"--export {folder}: cannot be written ({first_line(error)})") from None


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
        reason = f"not uploaded: {first_line(error)}"
        text = f"--push-to-hub {name}: {reason}; the folder {folder} is complete"
        raise hub_error(error)(text) from None


def settings(trained: Trained) -> dict[str, Any]:
    """What a library config does not hold, for `load_model` to read again."""
    hparams = {**dataclasses.asdict(trained.hparams), "model": base_model(trained)}
    hparams["model_config"] = None  # config.json has it
    return {
        "hyperparameters": hparams,
        "data": public(trained.data),
        "steps": trained.steps,
        "scores": trained.scores,
    }
