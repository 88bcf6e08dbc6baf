"""Checks of a cluster's machine for a language model, before any work: `check`.

Writing token shards can take hours; faults that would end the task after that end it here.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detalbert.engine.models import check_weights
from detalbert.reading import storage
from detalbert.reading.folders import find_files
from detalbert.reading.forms import ENDINGS, PACKED
from detalbert.settings.text import parse_documents_config
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
    """Check that this machine can run the experiment. Raises UserError for the first fault. Without
    GPUs, all slots are assumed to be on it. Ready-made shards are opened right afterwards.
    """
    data = parse_documents_config(config["data"])
    preflight.check_gpus(gpu_uuids)
    text = sum(find_text(one.source, f"data.{data.source}") for one in data.training)
    text += sum(find_text(one.source, f"data.{data.held_out_source}") for one in data.held_out)
    if hparams.model is not None:
        check_weights(hparams.model, "*.safetensors")
    pieces = data.vocab_size  # a range stands for a tokenizer that is not trained yet
    tokenizer: Any = load_tokenizer(data, named_tokenizer) if pieces is None else range(pieces)
    check_family(model := causal_config(hparams, tokenizer))
    slots = (config.get("resources") or {}).get("slots_per_trial", 1)
    here = len(gpu_uuids) or slots
    layout = choose_layout(hparams.layout, model, slots, here)
    sizes = causal_sizes(model)
    if gpu_uuids:
        memory = split_memory(sizes, layout, hparams)
        preflight.check_gpu_memory(gpu_uuids, memory, hparams, sizes.parameters)
    cache = Path(data.cache_dir)
    shards = text // _BYTES_PER_TOKEN * (2 if model.vocab_size <= 2**16 else 4)
    there = sum(p.stat().st_size for p in cache.rglob("*") if p.is_file())  # by an earlier start
    preflight.check_disk(cache, max(GIB, shards - there), "token shards")
    _check_checkpoints(config, 12 * sizes.parameters, machines=-(-slots // here))


def find_text(name: str, key: str) -> int:
    """Return the bytes of the plain files that the config's `key` names, as far as known. Raises
    UserError if a server has none; other text is looked for when it is read.
    """
    if not storage.is_remote(name):
        paths = [path for path in storage.find_paths(name) if path.suffix.lower() in ENDINGS]
        return sum(path.stat().st_size for path in paths)
    files = find_files(name, key)
    return sum(file.size for file in files if not file.address.lower().endswith(PACKED))


def _check_checkpoints(config: Mapping[str, Any], checkpoint: int, machines: int) -> None:
    """Raise UserError or Unavailable unless disks can hold two checkpoints, the last and the next,
    of `checkpoint` bytes each; the machines share it.
    """
    here, whole = Path(tempfile.gettempdir()), 2 * checkpoint
    preflight.check_disk(here, whole // machines, "this machine's parts of two checkpoints")
    stored = preflight.checkpoint_folder(config.get("checkpoint_storage") or {})
    if stored != here:
        preflight.check_disk(stored, whole, "two checkpoints")
