"""What a language model asks of a machine of a cluster, before any work: `check`.

Text that is there becomes token shards for hours; what would end the task after that ends it here.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from detalbert.corpus import packed, sources, storage
from detalbert.errors import UserError
from detalbert.hub import find_local
from detalbert.training import preflight
from detalbert.training.preflight import GIB
from lm.data import load_tokenizer
from lm.hparams import LmHParams
from lm.layout import choose_layout, parse_layout
from lm.model import read_config
from lm.packed import check_family
from lm.settings import DocumentsConfig, parse_documents_config
from lm.sizes import causal_sizes, split_memory

_SUFFIXES = (*sources.SUFFIXES, *packed.CODECS)
_BYTES_PER_TOKEN = 5  # of text; more than vocabularies have, so that no cache is overrated


def check(config: Mapping[str, Any], hparams: LmHParams, gpu_uuids: Sequence[str]) -> None:
    """Whether this machine can run the experiment. Raises UserError for the first that cannot be.

    Where no GPU was given, all slots are taken to be on this machine. Shards, where they were made
    before, are opened right after this.
    """
    data = parse_documents_config(config["data"])
    preflight.check_gpus(gpu_uuids)
    text = 0
    for key in ("documents", "validation_documents"):
        if (name := getattr(data, key)) is not None:
            text += find_text(name, f"data.{key}")
    model = model_config(data, hparams)
    check_family(model)
    slots = (config.get("resources") or {}).get("slots_per_trial", 1)
    here = len(gpu_uuids) or slots
    layout = choose_layout(parse_layout(hparams.layout), model, slots, here)
    sizes = causal_sizes(model)
    if gpu_uuids:
        memory = split_memory(sizes, layout, hparams)
        preflight.check_gpu_memory(gpu_uuids, memory, hparams, sizes.parameters)
    shards = text // _BYTES_PER_TOKEN * (2 if model.vocab_size <= 2**16 else 4)
    check_disks(
        config, Path(data.cache_dir), shards, 12 * sizes.parameters, machines=-(-slots // here)
    )


def find_text(name: str, key: str) -> int:
    """Bytes of the plain files that the config's `key` names, as far as they can be known.

    Raises UserError where there is nothing. A hub's data set is asked for, not fetched.
    """
    if name in ("generated", "botocore"):
        return 0
    if storage.is_remote(name):
        files = storage.find_files(name, key, _SUFFIXES)
        return sum(file.size for file in files if file.address.endswith(sources.SUFFIXES))
    path = Path(name)
    place = name if path.exists() else name.partition(":")[0]  # a hub's NAME:CONFIG
    preflight.check_place(place, key, _SUFFIXES)
    found = path.rglob("*") if path.is_dir() else [path]
    return sum(p.stat().st_size for p in found if p.suffix in sources.SUFFIXES and p.is_file())


class Pieces:
    """As much of a tokenizer as a model's config depends on, before it is learned."""

    pad_token_id = bos_token_id = eos_token_id = None

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces

    def __len__(self) -> int:
        return self.pieces


def model_config(data: DocumentsConfig, hparams: LmHParams) -> PretrainedConfig:
    """What is trained. Raises UserError as `load_tokenizer` and `read_config` do, and for a folder
    without weights."""
    folder = Path(find_local(hparams.model or ""))
    if hparams.model and folder.is_dir() and not list(folder.glob("*.safetensors")):
        raise UserError(
            f"hyperparameters.model: {hparams.model!r} has no safetensors in this container; "
            ".detignore may have kept them out of the upload"
        )
    pieces = data.vocab_size
    tokenizer: Any = load_tokenizer(data) if pieces is None else Pieces(pieces)
    return read_config(hparams.model, hparams.model_config, tokenizer, hparams.max_seq_length)


def check_disks(
    config: Mapping[str, Any], cache: Path, shards: int, checkpoint: int, machines: int
) -> None:
    """Refuse full disks: for the token shards, and for two checkpoints, of which the next is
    written while the last goes.

    Args: shards, checkpoint: bytes of each; the machines share a checkpoint's.
    """
    there = sum(p.stat().st_size for p in cache.rglob("*") if p.is_file())  # by an earlier start
    preflight.check_disk(cache, max(GIB, shards - there), "token shards")
    here, whole = Path(tempfile.gettempdir()), 2 * checkpoint
    preflight.check_disk(here, whole // machines, "this machine's parts of two checkpoints")
    stored = preflight.checkpoint_folder(config.get("checkpoint_storage") or {})
    if stored != here:
        preflight.check_disk(stored, whole, "two checkpoints")
