"""Model card of an exported model: description, usage, scores."""

import dataclasses
import platform
from importlib import metadata
from pathlib import PurePath
from typing import Any

import yaml

from detalbert.hub import split_revision
from detalbert.inference.model import Trained
from detalbert.settings.experiment import masked
from detalbert.squad.sources import OFFICIAL_SHA256

PACKAGES = ("torch", "transformers", "tokenizers", "determined")
SQUAD_LICENSE = "cc-by-sa-4.0"
FROM_SCRATCH = "random weights"


def base_model(trained: Any) -> str:
    """Return the name of the model that training started from; `trained` as for `settings`."""
    return _name(trained.hparams.model or FROM_SCRATCH)


def settings(trained: Any) -> dict[str, Any]:
    """Return settings that a transformers config does not hold, which a loader reads again.
    `trained` has `hparams`, `data`, `steps` and `scores`.
    """
    hparams = {**dataclasses.asdict(trained.hparams), "model": base_model(trained)}
    hparams["model_config"] = None  # config.json has it
    found = {"hyperparameters": hparams, "data": public(trained.data)}
    return {**found, "steps": trained.steps, "scores": trained.scores}


def front_matter(facts: dict[str, Any]) -> str:
    """Return the card's metadata block for the hub."""
    return f"---\n{yaml.safe_dump(facts, sort_keys=False, allow_unicode=True)}---"


def public(data: dict[str, Any]) -> dict[str, Any]:
    """Return `data:` without logins and details of the machine: folders, the cache."""
    kept = masked({key: value for key, value in data.items() if key != "cache_dir"})
    return {key: _name(value) if isinstance(value, str) else value for key, value in kept.items()}


def _name(name: str) -> str:
    """Return `name`, or only its last component if it is a path on this machine."""
    path = PurePath(name)
    return path.name if path.is_absolute() or name.startswith((".", "~")) else name


def card(trained: Trained, license_id: str) -> str:
    """Return the model card: metadata for the hub, then the same and more as text."""
    data, hparams = public(trained.data), dataclasses.asdict(trained.hparams)
    names = [str(data.get(split)) for split in ("train", "validation")]
    squad = any(name in OFFICIAL_SHA256 or "squad" in name.lower() for name in names)
    front = _front(trained, license_id, squad)
    kept = {key: value for key, value in hparams.items() if key not in ("model", "model_config")}
    versions = {name: metadata.version(name) for name in PACKAGES}
    sections = [
        front_matter(front),
        "# Extractive question answering",
        f"An encoder of type {trained.model.config.model_type} with "
        f"{trained.model.num_parameters():,} parameters that marks the answer to a question in a "
        "text, or says that it has none.\n"
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


def _front(trained: Trained, license_id: str, squad: bool) -> dict[str, Any]:
    front: dict[str, Any] = {
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
        front["base_model"] = split_revision(name)[0]
    if squad:
        front["datasets"] = ["rajpurkar/squad_v2"]
    return front


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


def _rows(values: dict[str, Any]) -> str:
    lines = ["| | |", "| --- | --- |"]
    for key, value in values.items():
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        lines.append(f"| {key} | {shown.replace('|', chr(92) + '|')} |")
    return "\n".join(lines)
