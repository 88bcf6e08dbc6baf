"""Checks of a cluster's machine for a language model, before any work: `check`.

Writing token shards can take hours; faults that would end the task after that end it here.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from transformers import PretrainedConfig

from detalbert.corpus.text import open_texts
from detalbert.engine.models import check_weights
from detalbert.records import UNPACK
from detalbert.settings.text import DocumentsConfig, parse_documents_config
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.training import preflight
from detalbert.training.preflight import GIB
from lm.corpus import load_tokenizer
from lm.hparams import LmHParams
from lm.layout import choose_layout, split_memory
from lm.model import causal_config, causal_sizes
from lm.packed import check_family

_BYTES_PER_TOKEN = 5  # of text; more than vocabularies have, so that no cache is overrated


def check(config: Mapping[str, Any], hparams: LmHParams, gpu_uuids: Sequence[str]) -> None:
    """Check that this machine can run the experiment.

    Without GPUs, all slots are assumed to be on it. Ready-made shards are opened right afterwards.

    Args:
        config: the experiment's.
        hparams: parsed from it.
        gpu_uuids: of this machine's GPUs.

    Raises:
        UserError: for the first fault; Unavailable if another machine may do.
    """
    data = parse_documents_config(config["data"])
    preflight.check_gpus(gpu_uuids)
    text_bytes = _count_text(data)
    model_config = _find_model(data, hparams)
    slots = (config.get("resources") or {}).get("slots_per_trial", 1)
    slots_per_machine = len(gpu_uuids) or slots
    layout = choose_layout(
        hparams.layout, model_config, slots=slots, slots_per_machine=slots_per_machine
    )

    # The GPUs hold the model's shards and a forward.
    sizes = causal_sizes(model_config)
    if gpu_uuids:
        memory = split_memory(sizes, layout, hparams)
        preflight.check_gpu_memory(gpu_uuids, memory, hparams, parameters=sizes.parameters)

    # The disks hold the token shards and two checkpoints.
    token_bytes = 2 if model_config.vocab_size <= 2**16 else 4
    tokens = text_bytes // _BYTES_PER_TOKEN
    _check_cache(Path(data.cache_dir), shard_bytes=tokens * token_bytes)
    _check_checkpoints(
        config,
        checkpoint_bytes=12 * sizes.parameters,  # weights and two moments in fp32
        machines=-(-slots // slots_per_machine),
    )


def _count_text(data: DocumentsConfig) -> int:
    """Return the bytes of all text of `data:`, without packed files, whose sizes say little.

    Raises:
        UserError: an address has no text.
        Unavailable: a server fails.
    """
    units = [unit for units in open_texts(data) for unit in units]
    return sum(unit.size for unit in units if PurePath(unit.name).suffix not in UNPACK)


def _find_model(data: DocumentsConfig, hparams: LmHParams) -> PretrainedConfig:
    """Return the model's config. Raises UserError if weights or tokenizer are missing, do not fit,
    or the model does not read packed rows.
    """
    if hparams.model is not None:
        check_weights(hparams.model, "*.safetensors")
    tokenizer: Any
    if data.vocab_size is None:
        tokenizer = load_tokenizer(data, named_tokenizer)
    else:
        tokenizer = range(data.vocab_size)  # stands for one that is not trained yet
    model_config = causal_config(hparams, tokenizer)
    check_family(model_config)
    return model_config


def _check_cache(cache: Path, shard_bytes: int) -> None:
    """Raise unless the disk of `cache` can hold token shards, less those of an earlier start."""
    written = 0
    for path in cache.rglob("*"):
        if path.is_file():
            written += path.stat().st_size
    preflight.check_disk(cache, max(GIB, shard_bytes - written), "token shards")


def _check_checkpoints(config: Mapping[str, Any], checkpoint_bytes: int, machines: int) -> None:
    """Raise UserError or Unavailable unless disks can hold two checkpoints, the last and the next;
    the machines share each.
    """
    # Each machine writes its shards to a temporary folder, and uploads them from there.
    needed = 2 * checkpoint_bytes
    temporary = Path(tempfile.gettempdir())
    preflight.check_disk(temporary, needed // machines, "this machine's parts of two checkpoints")
    # A storage that is a folder holds the parts of all machines.
    stored = preflight.checkpoint_folder(config.get("checkpoint_storage") or {})
    if stored != temporary:
        preflight.check_disk(stored, needed, "two checkpoints")
