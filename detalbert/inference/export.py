"""Export of a trained model as a Hugging Face model folder with a model card."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from detalbert.atomic import whole_folder, write_json
from detalbert.errors import UserError, first_line
from detalbert.hub import hub_error
from detalbert.inference.model import SETTINGS, Trained
from detalbert.inference.model_card import card, settings
from detalbert.integrity import SUMS, write_facts


def export(trained: Trained, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (safetensors, fp32), config, tokenizer, settings and card to a new `folder`.
    The folder is written atomically. Raises UserError if it exists or cannot be written.
    """
    with new_folder(folder) as aside:
        trained.model.save_pretrained(aside)
        trained.tokenizer.save_pretrained(aside)
        write_json(aside / SETTINGS, settings(trained))
        (aside / "README.md").write_text(card(trained, license_id), encoding="utf-8")


@contextlib.contextmanager
def new_folder(
    folder: Path,
    faults: tuple[type[Exception], ...] = (OSError, RuntimeError),  # safetensors on a full disk
) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` on success. Raises UserError if `folder`
    exists, or the block raises one of `faults`.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--export {folder}: it exists; give a new folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as aside:
            yield aside
            for file in aside.glob("*.safetensors"):
                file.chmod(0o644)  # safetensors makes it readable for one user
            write_facts(aside / SUMS, {}, "*.safetensors")
    except faults as error:
        raise UserError(f"--export {folder}: not written ({first_line(error)})") from None


def push(folder: Path, name: str) -> str:
    """Upload an exported folder to the hub (private if new); return its address. Raises UserError
    if the hub refuses, Unavailable if the network fails.
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
