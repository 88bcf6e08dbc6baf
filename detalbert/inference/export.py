"""Export of a trained model as a Hugging Face model folder with a model card."""

import contextlib
import dataclasses
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePath
from string import Template
from typing import Any

import huggingface_hub
import yaml
from transformers import PreTrainedModel

from detalbert.atomic import whole_folder, write_json
from detalbert.errors import UserError, as_user_error, first_line
from detalbert.hub import hub_errors, split_revision
from detalbert.inference.model import SETTINGS, Trained
from detalbert.integrity import SUMS, write_facts
from detalbert.redact import masked
from detalbert.squad.sources import OFFICIAL_SHA256

README = "README.md"  # the model card: the one file that may be edited
CARD = Path(__file__).with_name("card.md")
PACKAGES = ("torch", "transformers", "tokenizers", "determined")
FROM_SCRATCH = "random weights"


def export(trained: Trained, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (safetensors, fp32), config, tokenizer, settings and card to a new `folder`.
    The folder is written atomically. Raises UserError if it exists or cannot be written.
    """
    with new_folder(folder) as aside:
        trained.model.save_pretrained(aside)
        write_rest(aside, trained, SETTINGS, card(CARD, trained, trained.model, license_id))


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` on success. Raises UserError if `folder`
    exists, or the block fails: safetensors raises its own errors on a full disk.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--export {folder}: it exists; give a new folder")
    failed = f"--export {folder}: not written"
    with as_user_error(lambda error: UserError(f"{failed} ({first_line(error)})")):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as aside:
            yield aside
            for file in aside.glob("*.safetensors"):
                file.chmod(0o644)  # safetensors makes it readable for one user
            write_facts(aside / SUMS, {}, without=[README])


def write_rest(folder: Path, trained: Any, settings: str, readme: str) -> None:
    """Write the tokenizer, the card, and the file `settings`: what a transformers config does not
    hold, and a loader reads again. `trained` has `tokenizer`, `hparams`, `data`, `steps`, `scores`.
    """
    trained.tokenizer.save_pretrained(folder)
    hparams = dataclasses.asdict(trained.hparams) | {"model_config": None}  # config.json has it
    hparams["model"] = _name(hparams["model"] or FROM_SCRATCH)
    facts = {"steps": trained.steps, "scores": trained.scores}
    sections = {"hyperparameters": hparams, "data": _public(trained.data)}
    write_json(folder / settings, sections | facts)
    (folder / README).write_text(readme, encoding="utf-8")


def card(template: Path, trained: Any, model: PreTrainedModel, license_id: str) -> str:
    """Return the model card: `template` with the facts of `trained` (as for `write_rest`) and of
    `model`, which may be on the meta device.
    """
    hparams, data = dataclasses.asdict(trained.hparams), _public(trained.data)
    names = [str(data.get(split)) for split in ("train", "validation")]
    squad = any(name in OFFICIAL_SHA256 or "squad" in name.lower() for name in names)
    front: dict[str, Any] = {"license": license_id}
    base = hparams.pop("model") or FROM_SCRATCH
    local = PurePath(base).is_absolute() or base.startswith((".", "embedded/"))
    if base != FROM_SCRATCH and not local:
        front["base_model"] = split_revision(base)[0]
    if squad:
        front["datasets"] = ["rajpurkar/squad_v2"]
    facts = {key: shown_value(value) for key, value in hparams.items()}
    del hparams["model_config"]
    versions = {name: metadata.version(name) for name in PACKAGES}
    facts |= {
        "front": yaml.safe_dump(front, sort_keys=False, allow_unicode=True),
        "license": license_id,
        "architecture": model.config.model_type,
        "parameters": f"{model.num_parameters():,}",
        "tokens": f"{len(trained.tokenizer):,}",
        "base_model": _name(base),
        "steps": str(trained.steps or "an unknown number of"),
        "data": markdown_table(data) if data else "Not recorded.",
        "data_licence": "SQuAD: cc-by-sa-4.0." if squad else "Data: see its source.",
        "scores": markdown_table(trained.scores) if trained.scores else "Not validated.",
        "hyperparameters": markdown_table(hparams),
        "versions": markdown_table({"python": platform.python_version(), **versions}),
    }
    return Template(template.read_text(encoding="utf-8")).substitute(facts)


def markdown_table(values: dict[str, Any]) -> str:
    """Return a Markdown table of two columns."""
    rows = [f"| {key} | {shown_value(value)} |" for key, value in values.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def shown_value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _public(data: dict[str, Any]) -> dict[str, Any]:
    """Return `data:` without logins and details of the machine: folders, the cache."""
    kept = masked({key: value for key, value in data.items() if key != "cache_dir"})
    return {key: _name(value) if isinstance(value, str) else value for key, value in kept.items()}


def _name(name: str) -> str:
    """Return `name`, or only its last component if it is a path on this machine."""
    path = PurePath(name)
    return path.name if path.is_absolute() or name.startswith((".", "~")) else name


def push(folder: Path, name: str) -> str:
    """Upload an exported folder to the hub (private if new); return its address. Raises UserError
    if the hub refuses, Unavailable if the network fails.
    """
    complete = f"; the folder {folder} is complete"
    with hub_errors(f"--push-to-hub {name}: not uploaded", complete):
        hub = huggingface_hub.HfApi()
        hub.create_repo(name, private=True, exist_ok=True)
        return str(hub.upload_folder(repo_id=name, folder_path=folder))
