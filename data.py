"""Questions -> windows: flat columns in a cache on disk that the processes of a machine share."""

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, List, Tuple

import filelock
import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from detalbert.errors import UserError
from detalbert.hub import find_local, hub_error
from detalbert.settings.hparams import DataConfig, HParams
from squad_files import Source, open_source, read_examples
from squad_utils import Example, Windows, build_windows, check_tokenizers_version

FORMAT = 1  # raise it when the columns or their meaning change


@dataclass(frozen=True, eq=False)
class Split:
    """One split, featurised: the windows (memory-mapped) and what is known of the questions."""

    source: Source
    windows: Windows
    counts: Dict[str, int]  # questions, unanswerable, windows, tokens
    faults: Dict[str, int]  # questions left out under data.skip_invalid, by kind
    config: DataConfig

    @cached_property
    def examples(self) -> List[Example]:
        """The questions, in the order of `windows.example_index`; read again from the source."""
        return _examples(self.source, self.config)[0]


def load_tokenizer(config: DataConfig, hparams: HParams) -> PreTrainedTokenizerBase:
    """The fast tokenizer of `data.tokenizer`, or the one beside `hyperparameters.model`.

    Raises UserError when there is none, or when this `tokenizers` release drops windows.
    """
    name = config.tokenizer or hparams.model
    if name is None:
        raise UserError("data.tokenizer: missing; a model_config brings no tokenizer, so set one")
    return named_tokenizer(name)


def named_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """As `load_tokenizer`, of a folder, a checkpoint of this package, or a hub name."""
    check_tokenizers_version()
    try:
        tokenizer = AutoTokenizer.from_pretrained(find_local(name))
    except Exception as error:  # the library raises OSError, ValueError, TypeError, ImportError
        raise hub_error(error)(
            f"data.tokenizer: {name!r} does not load as a tokenizer: {_first_line(error)}"
        ) from None
    if not tokenizer.is_fast:
        raise UserError(f"data.tokenizer: {name!r} has no fast tokenizer; give a tokenizer.json")
    return tokenizer


def load_split(
    config: DataConfig, split: str, tokenizer: PreTrainedTokenizerBase, hparams: HParams
) -> Split:
    """Featurise `data.train` or `data.validation`, or map the cache of an earlier time.

    The processes of a machine share one cache: the first takes a lock and writes, the others
    wait. The cache appears whole (written aside, then renamed) or not at all.
    Raises UserError for bad questions, and for a cache that cannot be written.
    """
    cache_dir = Path(config.cache_dir)
    source = open_source(getattr(config, split), split, cache_dir)
    folder = cache_dir / f"windows-{split}-{_cache_key(source, config, tokenizer, hparams)}"
    if not (folder / "meta.json").is_file():
        try:
            cache_dir.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(f"{folder}.lock"):
                if not (folder / "meta.json").is_file():
                    _featurise(folder, source, config, tokenizer, hparams)
        except OSError as error:
            raise UserError(
                f"{cache_dir}: cannot write the feature cache: {error.strerror or error}; "
                "free space or set data.cache_dir"
            ) from None
    meta = json.loads((folder / "meta.json").read_text())
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in meta["columns"]}
    return Split(source, Windows(**columns), meta["counts"], meta["faults"], config)


def _featurise(
    folder: Path,
    source: Source,
    config: DataConfig,
    tokenizer: PreTrainedTokenizerBase,
    hparams: HParams,
) -> None:
    examples, faults = _examples(source, config)
    windows = build_windows(
        examples,
        tokenizer,
        hparams.max_seq_length,
        hparams.doc_stride,
        hparams.max_query_length,
    )
    counts = {
        "questions": len(examples),
        "unanswerable": sum(not example.answers for example in examples),
        "windows": len(windows),
        "tokens": int(windows.lengths.sum(dtype=np.int64)),
    }
    columns = windows.columns()
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f"{folder.name}.writing-"))
    try:
        for name, column in columns.items():
            with (aside / f"{name}.npy").open("wb") as file:
                np.save(file, column)
                _flush(file)
        with (aside / "meta.json").open("w") as file:
            json.dump({"columns": list(columns), "counts": counts, "faults": faults}, file)
            _flush(file)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _examples(source: Source, config: DataConfig) -> Tuple[List[Example], Dict[str, int]]:
    limit = getattr(config, f"max_{source.split}_examples")
    return read_examples(source, config.skip_invalid, limit)


def _cache_key(
    source: Source, config: DataConfig, tokenizer: PreTrainedTokenizerBase, hparams: HParams
) -> str:
    vocabulary = tokenizer.backend_tokenizer.to_str()
    parts = [
        FORMAT,
        source.fingerprint,
        hashlib.sha256(vocabulary.encode()).hexdigest(),
        hparams.max_seq_length,
        hparams.doc_stride,
        hparams.max_query_length,
        config.skip_invalid,
        getattr(config, f"max_{source.split}_examples"),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _flush(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
