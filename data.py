"""Windows of the questions: flat columns in a disk cache that the ranks of a machine share."""

import hashlib
import json
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.atomic import alone, whole_folder, writing
from detalbert.errors import UserError
from detalbert.integrity import find_change, write_facts
from detalbert.reading.notes import Notes
from detalbert.settings.hparams import DataConfig, HParams, parse_data_config
from detalbert.squad.encoding import tokenizer_sum
from detalbert.squad.question_stream import LeftOut
from detalbert.squad.sources import Reading, Source, open_source, read_examples
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.squad.windows import Example, Windows, build_windows
from detalbert.training.workload import DataSummary
from detalbert.waiting import waiting

FORMAT = 4  # raise it when the columns or their meaning change
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Split:
    """One split as model inputs: memory-mapped windows, and counts of questions and errors."""

    source: Source
    windows: Windows
    counts: dict[str, int]  # questions, unanswerable, windows, tokens
    faults: dict[str, int]  # questions left out under data.skip_invalid, by kind
    notes: dict[str, int]  # questions by what else is to be known of them
    asked: np.ndarray  # uint64 [questions], a hash of each question and its context
    config: DataConfig

    @cached_property
    def examples(self) -> list[Example]:
        """The questions in the order of `windows.example_index`; read again from the source."""
        limit = getattr(self.config, f"max_{self.source.split}_examples")
        return read_examples(self.source, [] if self.config.skip_invalid else None, limit)


def load_tokenizer(config: DataConfig, hparams: HParams) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of `data.tokenizer`, or that of `hyperparameters.model`. Raises
    UserError if there is none.
    """
    name = config.tokenizer or hparams.model
    if name is None:
        raise UserError("data.tokenizer: missing; a model_config brings no tokenizer, so set one")
    return named_tokenizer(name)


def load_split(
    config: DataConfig, split: str, tokenizer: PreTrainedTokenizerBase, hparams: HParams
) -> Split:
    """Encode `data.train` or `data.validation`, or map the cache of an earlier run.

    The ranks of a machine share one cache: the first takes a lock and writes, the others wait.
    Raises UserError for invalid questions, and if the cache cannot be written.
    """
    cache_dir = Path(config.cache_dir)
    source = open_split(config, split)
    limit = getattr(config, f"max_{split}_examples")
    # A question is cut in training only: an answer must be to all of it.
    longest = hparams.max_query_length if split == "train" else None
    sizes = hparams.max_seq_length, hparams.doc_stride, longest
    key = [FORMAT, source.fingerprint, tokenizer_sum(tokenizer), *sizes, config.skip_invalid, limit]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    folder = cache_dir / f"windows-{split}-{digest[:24]}"
    if find_change(folder / "meta.json", digest):
        with writing(cache_dir, what="the feature cache"), alone(folder):
            if fault := find_change(folder / "meta.json", digest):
                if folder.exists():
                    what = "%s: %s is not as it was written; the windows are built anew"
                    log.warning(what, folder, fault)
                with waiting(f"encoding the questions of {source.name} ({split})"):
                    notes, faults = Notes(), Notes()
                    left_out: list[LeftOut] | None = [] if config.skip_invalid else None
                    examples = read_examples(source, left_out, limit, notes)
                    for question in left_out or ():
                        faults.add(question.kind, f"question {question.name}")
                    windows = build_windows(examples, tokenizer, *sizes, notes)
                    counted = {"faults": faults.texts(), "notes": notes.texts()}
                    _write(folder, digest, examples, windows, counted)
    meta = json.loads((folder / "meta.json").read_text())
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in meta["columns"]}
    asked = columns.pop("asked")
    facts = meta["counts"], meta["faults"], meta["notes"]
    return Split(source, Windows(**columns), *facts, asked, config)


def open_split(config: DataConfig, split: str) -> Source:
    """Find the source of a split; raises as `open_source`."""
    name = config.train if split == "train" else config.validation or config.train
    reading = Reading(
        columns=config.columns or {},
        form=config.form,
        no_answer=tuple(config.no_answer or ()),
        fraction=config.validation_fraction,
    )
    return open_source(name, split, Path(config.cache_dir), reading)


def _write(
    folder: Path, key: str, examples: list[Example], windows: Windows, facts: dict[str, Any]
) -> None:
    """Write the cache of a split; `key` is a hash of all that it depends on."""
    counts = {
        "questions": len(examples),
        "unanswerable": sum(not example.answers for example in examples),
        "windows": len(windows),
        "tokens": int(windows.lengths.sum(dtype=np.int64)),
    }
    asked = (hashlib.blake2b(repr((e.question, e.context)).encode()).digest() for e in examples)
    hashes = np.array([int.from_bytes(digest[:8], "big") for digest in asked], np.uint64)
    columns = {**windows.columns(), "asked": hashes}
    with whole_folder(folder) as aside:
        for name, column in columns.items():
            np.save(aside / f"{name}.npy", column)
        facts = {"columns": list(columns), "counts": counts, **facts}
        write_facts(aside / "meta.json", facts, key)


def split_line(split: Split) -> str:
    """Return the line that is logged about a split: its counts and the questions left out."""
    counts = split.counts
    left_out = ", ".join(f"{count} {kind}" for kind, count in split.faults.items())
    notes = "".join(f"; {count:,} {text}" for text, count in split.notes.items() if count)
    return (
        f"{split.source.name}: {counts['questions']:,} questions "
        f"({counts['unanswerable']:,} unanswerable), {counts['windows']:,} windows, "
        f"{counts['tokens']:,} tokens" + (f"; left out: {left_out}" if left_out else "") + notes
    )


class SquadData(NamedTuple):
    """Data of a trial: both splits, encoded with one tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    train: Split
    validation: Split

    @classmethod
    def load(cls, config: dict[str, Any], hparams: HParams) -> "SquadData":
        """Load `data:` of an experiment config. Raises UserError if data or keys are invalid."""
        data = parse_data_config(config)
        tokenizer = load_tokenizer(data, hparams)
        names = "train", "validation"
        train, validation = (load_split(data, name, tokenizer, hparams) for name in names)
        if data.validation == "generated" and data.train != "generated":
            log.warning(
                "data.validation: the generated world, and data.train is %s: the scores say "
                "nothing of it; set data.validation, or data.validation_fraction",
                data.train,
            )
        if shared := int(np.isin(validation.asked, train.asked).sum()):
            said = "data.validation: %s of its %s questions are in data.train, too: scores too high"
            log.warning(said, f"{shared:,}", f"{len(validation.asked):,}")
        return cls(tokenizer, train, validation)

    def summary(self) -> DataSummary:
        lines = {"train": split_line(self.train), "validation": split_line(self.validation)}
        return DataSummary(
            lines,
            windows=len(self.train.windows),
            tokens=self.train.counts["tokens"],
            validation_windows=len(self.validation.windows),
        )

    def fingerprints(self) -> dict[str, Any]:
        """Return hashes and values that identify questions and tokenizer, by config key."""
        config = self.train.config
        return {
            "data.train": self.train.source.fingerprint,
            "data.validation": self.validation.source.fingerprint,
            "data.tokenizer": tokenizer_sum(self.tokenizer),
            "data.max_train_examples": config.max_train_examples,
            "data.max_validation_examples": config.max_validation_examples,
            "data.skip_invalid": config.skip_invalid,
        }
