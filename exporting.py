"""A trained model as a Hugging Face model folder, with a card that says what it is."""

import dataclasses
import os
import platform
import shutil
import tempfile
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any, Dict, List, Optional

import yaml

from detalbert.atomic import write_json
from detalbert.errors import UserError
from detalbert.hub import hub_error
from detalbert.squad.sources import OFFICIAL_SHA256
from trained import SETTINGS, Trained

PACKAGES = ("torch", "transformers", "tokenizers", "determined")
SQUAD_LICENSE = "cc-by-sa-4.0"
FROM_SCRATCH = "random weights"


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


def settings(trained: Trained) -> Dict[str, Any]:
    """What is no part of a library config, for `trained.load` to read again."""
    hparams = {**dataclasses.asdict(trained.hparams), "model": base_model(trained)}
    hparams["model_config"] = None  # config.json has it
    return {
        "hyperparameters": hparams,
        "data": _public(trained.data),
        "steps": trained.steps,
        "scores": trained.scores,
    }


def base_model(trained: Trained) -> str:
    """What the training started from, for people."""
    return _name(trained.hparams.model or FROM_SCRATCH)


def _public(data: Dict[str, Any]) -> Dict[str, Any]:
    """`data:` without what is only of the machine: folders, the cache."""
    kept = {key: value for key, value in data.items() if key != "cache_dir"}
    return {key: _name(value) if isinstance(value, str) else value for key, value in kept.items()}


def _name(name: str) -> str:
    """`name`, or only its last part where it is a path of this machine."""
    path = PurePath(name)
    return path.name if path.is_absolute() or name.startswith((".", "~")) else name


def card(trained: Trained, license_id: str) -> str:
    """The model card: facts for the hub in front, then the same and more for people."""
    data, hparams = _public(trained.data), dataclasses.asdict(trained.hparams)
    squad = any(data.get(split) in OFFICIAL_SHA256 or "squad" in str(data.get(split)).lower()
                for split in ("train", "validation"))  # fmt: skip
    front = _front(trained, license_id, squad)
    kept = {key: value for key, value in hparams.items() if key not in ("model", "model_config")}
    versions = {name: metadata.version(name) for name in PACKAGES}
    sections = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---",
        "# Extractive question answering",
        f"An encoder of type {trained.model.config.model_type} with {_parameters(trained):,} "
        "parameters that marks the answer to a question in a text, or says that it has none.\n"
        f"It started from {base_model(trained)} and was trained for "
        f"{trained.steps or 'an unknown number of'} optimizer steps.",
        _usage(trained),
        "## Data\n\n" + (_rows(data) if data else "Not recorded."),
        "## Scores and thresholds\n\n" + _scores(trained),
        "## Licences\n\n"
        f"Weights: {license_id}. What they started from has a licence of its own; see its card.\n"
        + (f"SQuAD: {SQUAD_LICENSE}." if squad else "Data: see its source."),
        "## Hyperparameters\n\n" + _rows(kept),
        "## Versions\n\n" + _rows({"python": platform.python_version(), **versions}),
    ]
    return "\n\n".join(sections) + "\n"


def _front(trained: Trained, license_id: str, squad: bool) -> Dict[str, Any]:
    front: Dict[str, Any] = {
        "license": license_id,
        "language": "en",
        "library_name": "transformers",
        "pipeline_tag": "question-answering",
        "tags": ["question-answering", "squad", trained.model.config.model_type],
        "metrics": ["exact_match", "f1"],
    }
    name = trained.hparams.model or FROM_SCRATCH
    local = PurePath(name).is_absolute() or name.startswith((".", "embedded/"))
    if name != FROM_SCRATCH and not local:
        front["base_model"] = name
    if squad:
        front["datasets"] = ["rajpurkar/squad_v2"]
    return front


def _parameters(trained: Trained) -> int:
    return sum(parameter.numel() for parameter in trained.model.parameters())


def _usage(trained: Trained) -> str:
    sizes = trained.hparams
    return (
        "```python\n"
        "from transformers import AutoModelForQuestionAnswering, AutoTokenizer\n\n"
        "model = AutoModelForQuestionAnswering.from_pretrained(FOLDER)\n"
        "tokenizer = AutoTokenizer.from_pretrained(FOLDER)\n"
        "inputs = tokenizer(question, context, return_token_type_ids=True, return_tensors='pt')\n"
        "```\n\n"
        "ALBERT's tokenizer gives no `token_type_ids` unless asked, and the model needs them. "
        f"Texts longer than {sizes.max_seq_length} tokens go in windows that share "
        f"{sizes.doc_stride}; answers have at most {sizes.max_answer_length} tokens."
    )


def _scores(trained: Trained) -> str:
    default = (
        'A question counts as unanswerable where the score of "no answer" less that of the best '
        f"span is above {trained.hparams.null_score_diff_threshold:g}. Scores are the official "
        "ones, in percent; best_* are those at the best threshold, which *_thresh names."
    )
    return f"{default}\n\n" + (_rows(trained.scores) if trained.scores else "Not validated.")


def _rows(values: Dict[str, Any]) -> str:
    lines: List[Optional[str]] = ["| | |", "| --- | --- |"]
    for key, value in values.items():
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        lines.append(f"| {key} | {shown.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)
