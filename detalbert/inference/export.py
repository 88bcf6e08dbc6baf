"""Export of a trained model as a Hugging Face model folder with a model card.

The folder is for whoever does not have this package: transformers loads it. What transformers has
no place for (lengths, threshold, temperatures) is in a file beside its own, which this package
reads again. It names no path of this machine and holds no login, as such folders are published.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePath
from string import Template
from typing import Any

from huggingface_hub import ModelCardData
from transformers import PreTrainedModel

from detalbert.errors import UserError, as_user_error, first_line
from detalbert.files import sweep, whole_folder, write_json
from detalbert.hub import split_revision
from detalbert.inference.model import SETTINGS, Trained
from detalbert.redact import masked
from detalbert.settings.languages import ENGLISH
from detalbert.squad.sources import OFFICIAL_SHA256
from detalbert.sums import Json, load_json, write_sums

README = "README.md"  # the model card: the one file that may be edited
CARD = Path(__file__).with_name("card.md")
FROM_SCRATCH = "random weights"
# Layers of ModernBERT that attend to all tokens, and to near ones.
FULL, SLIDING = "full_attention", "sliding_attention"


def export(trained: Trained, folder: Path, license_id: str = "unknown") -> None:
    """Write weights (safetensors, fp32), config, tokenizer, settings and card to a new `folder`.

    The folder is written atomically.

    Raises:
        UserError: the folder exists or cannot be written.
    """
    with new_folder(folder) as temporary:
        trained.model.save_pretrained(temporary)
        readme = card(CARD, trained, trained.model, license_id)
        write_rest(temporary, trained, SETTINGS, readme)


def check_new(folder: Path) -> None:
    """Raise UserError if an export to `folder` would replace something. What a killed one left
    beside it goes.
    """
    sweep(folder.parent)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError("it exists", key=f"--export {folder}", cure="give a new folder")


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` on success.

    Raises:
        UserError: `folder` exists, or the block fails: safetensors raises its own errors on a full
            disk.
    """
    check_new(folder)
    with as_user_error(partial(_not_written, folder)):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(folder) as temporary:
            yield temporary

            # The sums come last: a loader reports files that were changed after the export.
            for file in temporary.glob("*.safetensors"):
                file.chmod(0o644)  # safetensors makes it readable for one user
            write_sums(temporary, without=[README])


def _not_written(folder: Path, error: BaseException) -> UserError:
    return UserError(f"not written ({first_line(error)})", key=f"--export {folder}")


def write_rest(folder: Path, trained: Any, settings: str, readme: str) -> None:
    """Write all of an exported folder but weights and config.

    Args:
        trained: has the tokenizer, hparams, data, steps and scores of a training, as `Trained`.
        settings: name of the file for what a transformers config does not hold, and a loader reads.
        readme: the card's text.
    """
    trained.tokenizer.save_pretrained(folder)
    add_older_names(folder)

    # A path of this machine means nothing elsewhere: of a folder its name is left.
    hparams = dataclasses.asdict(trained.hparams)
    hparams["model_config"] = None  # config.json has it
    hparams["model"] = _name(hparams["model"] or FROM_SCRATCH)
    values = {
        "hyperparameters": hparams,
        "data": _public(trained.data),
        "steps": trained.steps,
        "scores": trained.scores,
    }
    write_json(folder / settings, values)
    (folder / README).write_text(readme, encoding="utf-8")


def add_older_names(folder: Path) -> None:
    """Make an exported folder load in transformers 4.57 as in 5, which reads these names, too."""
    file = folder / "tokenizer_config.json"
    tokenizer = load_json(file)
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        write_json(file, {**tokenizer, "tokenizer_class": "PreTrainedTokenizerFast"})
    file = folder / "config.json"
    config = load_json(file)
    # Without these names 4.57 would take its defaults, silently.
    rope = config.get("rope_parameters") or {}
    if config["model_type"] == "modernbert":
        config["global_rope_theta"] = rope[FULL]["rope_theta"]
        config["local_rope_theta"] = rope[SLIDING]["rope_theta"]
        config["global_attn_every_n_layers"] = _global_period(config["layer_types"], rope)
    elif "rope_theta" in rope:
        config["rope_theta"] = rope["rope_theta"]
        if config["model_type"] == "gpt_neox":
            config["rotary_emb_base"] = rope["rope_theta"]
            config["rotary_pct"] = rope["partial_rotary_factor"]
        if rope["rope_type"] != "default":
            config["rope_scaling"] = {key: rope[key] for key in rope if key != "rope_theta"}
    write_json(file, config)


def _global_period(layer_types: list[str], rope: Json) -> int:
    """Return n of a ModernBERT whose every n-th layer, from the first on, attends to all tokens.

    Raises:
        UserError: 4.57 has no such order of layers, or no such position embeddings.
    """
    period = [*layer_types, FULL].index(FULL, 1)
    regular = [SLIDING if layer % period else FULL for layer in range(len(layer_types))]
    if layer_types != regular or {rope[kind]["rope_type"] for kind in rope} != {"default"}:
        raise UserError(
            "transformers 4.57 would silently take other layer_types or rope types than its own",
            key="--export",
            cure="use the run itself",
        )
    return period


def card(template: Path, trained: Any, model: PreTrainedModel, license_id: str) -> str:
    """Return the model card: `template`, filled in.

    Args:
        trained: as for `write_rest`.
        model: for its architecture and size; may be on the meta device.
        license_id: of the weights, as the hub spells it.
    """
    hparams = dataclasses.asdict(trained.hparams)
    data = _public(trained.data)
    base = hparams.pop("model") or FROM_SCRATCH

    # The template names single hyperparameters, and has a table of all but the model's config.
    values = {key: shown_value(value) for key, value in hparams.items()}
    del hparams["model_config"]
    values |= {
        "front": _front_matter(base, data, license_id),
        "license": license_id,
        "architecture": model.config.model_type,
        "parameters": f"{model.num_parameters():,}",
        "tokens": f"{len(trained.tokenizer):,}",
        "mask": str(trained.tokenizer.mask_token),
        "base_model": _name(base),
        "steps": str(trained.steps or "an unknown number of"),
        "data": markdown_table(data) if data else "Not recorded.",
        "scores": markdown_table(trained.scores) if trained.scores else "Not validated.",
        "hyperparameters": markdown_table(hparams),
    }
    return Template(template.read_text(encoding="utf-8")).substitute(values)


def _front_matter(base: str, data: Json, license_id: str) -> str:
    """Return what the hub reads of a card, as YAML: the license and, of the hub, the base model;
    a data set if it is an official one.
    """
    # The hub links a base model, which a folder cannot be.
    is_local = PurePath(base).is_absolute() or base.startswith((".", "embedded/", FROM_SCRATCH))
    front = ModelCardData(
        # Of answers by default English; of other text it is known if it is set.
        language=data.get("language", ENGLISH if "train" in data else None),
        license=license_id,
        base_model=None if is_local else split_revision(base)[0],
        datasets="rajpurkar/squad_v2" if data.get("train") in OFFICIAL_SHA256 else None,
    )
    return front.to_yaml() + "\n"


def markdown_table(values: Mapping[str, object]) -> str:
    """Return a Markdown table of two columns."""
    rows = [f"| {key} | {shown_value(value)} |" for key, value in values.items()]
    return "\n".join(["| | |", "| --- | --- |", *rows])


def shown_value(value: object) -> str:
    """Format a value for a table: six digits of a float, no cell's end in a text."""
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def _public(data: Json) -> Json:
    """Return `data:` without logins and details of the machine: folders, the cache."""
    public = {}
    for key, value in masked(data).items():
        if key != "cache_dir":
            public[key] = _name(value) if isinstance(value, str) else value
    return public


def _name(name: str) -> str:
    """Return `name`, or only its last component if it is a path on this machine."""
    path = PurePath(name)
    return path.name if path.is_absolute() or name.startswith((".", "~")) else name
