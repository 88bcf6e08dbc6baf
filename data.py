"""Windows of the questions: flat columns in a disk cache that the ranks of a machine share.

All windows are made before the first step, by one rank, and mapped into memory by all: encoding
takes a minute or two of SQuAD's size, once, and the next start takes none. The cache is named by a
hash of all that can change a byte of it, so nothing has to be thrown away by hand.
"""

import hashlib
import itertools
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedTokenizerBase

from detalbert.engine.models import check_span_model
from detalbert.errors import UserError
from detalbert.files import cached_folder
from detalbert.progress import waiting
from detalbert.settings.hparams import DataConfig, HParams, parse_data_config
from detalbert.settings.values import Config
from detalbert.squad.encoding import tokenizer_sum
from detalbert.squad.questions import LeftOut, read_examples
from detalbert.squad.sources import Source, open_split
from detalbert.squad.tokenizer import named_tokenizer
from detalbert.squad.windows import Example, Windows, build_windows
from detalbert.sums import json_sum
from detalbert.training.workload import DataSummary

# Of a cache; raise it when the columns or their meaning change, or files are read otherwise.
FORMAT = 9
# Share of the tokens of contexts that may be unknown without a warning; of SQuAD it is 0.0016.
MOST_UNKNOWN = 0.05
# In a cache: names of the columns, and counts.
META = "meta.json"
# The column of the questions' hashes, which is no part of the windows.
HASHES = "asked"
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Split:
    """One split as model inputs: memory-mapped windows, and counts of questions and errors."""

    source: Source
    windows: Windows
    counts: dict[str, int]  # questions, texts, unanswerable, windows, tokens
    faults: dict[str, int]  # questions left out under data.skip_invalid, by kind
    notes: dict[str, int]  # questions by what else is to be known of them
    question_hashes: np.ndarray  # uint64 [questions], of each question and its context
    config: DataConfig

    @cached_property
    def examples(self) -> list[Example]:
        """The questions in the order of `windows.example_index`; read again from the source."""
        left_out: list[LeftOut] | None = [] if self.config.skip_invalid else None
        examples = read_examples(self.source, left_out=left_out)
        return list(itertools.islice(examples, max_examples(self.config, self.source)))


def max_examples(config: DataConfig, source: Source) -> int | None:
    """Return the limit of questions of a split; None: all."""
    if source.split == "train":
        return config.max_train_examples
    return config.max_validation_examples


def load_tokenizer(config: DataConfig, hparams: HParams) -> PreTrainedTokenizerBase:
    """Return the fast tokenizer of `data.tokenizer`, or that of `hyperparameters.model`.

    Raises:
        UserError: there is none.
    """
    if config.tokenizer:
        return named_tokenizer(config.tokenizer)
    if hparams.model is None:
        raise UserError(
            "missing", key="data.tokenizer", cure="a model_config brings no tokenizer, so set one"
        )
    return named_tokenizer(hparams.model, key="hyperparameters.model")


def load_split(
    config: DataConfig, source: Source, tokenizer: PreTrainedTokenizerBase, hparams: HParams
) -> Split:
    """Encode the questions of a source, or map the cache of an earlier run.

    The ranks of a machine share one cache: the first takes a lock and writes, the others wait.

    Args:
        source: of `open_split`.

    Raises:
        UserError: a question is invalid, or the cache cannot be written.
    """
    # A question is cut in training only: an answer must be to all of it.
    longest = hparams.max_query_length if source.split == "train" else None
    key = json_sum(
        [
            FORMAT,
            source.fingerprint,
            tokenizer_sum(tokenizer),
            hparams.max_seq_length,
            hparams.doc_stride,
            longest,
            config.skip_invalid,
            max_examples(config, source),
        ]
    )
    what = f"the questions of {source.name} ({source.split})"

    def build(folder: Path) -> None:
        notes: Counter[str] = Counter()
        left_out: list[LeftOut] | None = [] if config.skip_invalid else None
        with waiting(f"encoding {what}"):
            questions = read_examples(source, left_out=left_out, counts=notes)
            examples = list(itertools.islice(questions, max_examples(config, source)))
            windows = build_windows(
                examples,
                tokenizer,
                max_seq_length=hparams.max_seq_length,
                doc_stride=hparams.doc_stride,
                max_query_length=longest,
                notes=notes,
            )
            faults = Counter(question.kind for question in left_out or ())
            _write(folder, examples, windows, faults=faults, notes=notes)

    folder = Path(config.cache_dir) / f"windows-{source.split}-{key[:24]}"
    cached_folder(folder, key=key, build=build, what=what)
    return _map(folder, source=source, config=config)


def _write(
    folder: Path,
    examples: Sequence[Example],
    windows: Windows,
    faults: Counter[str],
    notes: Counter[str],
) -> None:
    """Write the cache of encoded questions."""
    counts = {
        "questions": len(examples),
        "texts": len({example.context for example in examples}),
        "unanswerable": sum(not example.answers for example in examples),
        "windows": len(windows),
        "tokens": int(windows.lengths.sum(dtype=np.int64)),
    }
    columns = {**windows.columns(), HASHES: _hash_questions(examples)}
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    # Each start logs the counts, and the file is read once.
    meta = {
        "columns": list(columns),
        "counts": counts,
        "faults": faults,
        "notes": notes,
    }
    (folder / META).write_text(json.dumps(meta))


def _hash_questions(examples: Sequence[Example]) -> np.ndarray:
    """Return a hash of each question and its context, uint64 [examples]."""
    hashes = []
    for example in examples:
        text = repr((example.question, example.context))
        digest = hashlib.blake2b(text.encode()).digest()
        hashes.append(int.from_bytes(digest[:8], "big"))
    return np.array(hashes, np.uint64)


def _map(folder: Path, source: Source, config: DataConfig) -> Split:
    """Map a cache into memory."""
    meta = json.loads((folder / META).read_text())
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in meta["columns"]}
    hashes = columns.pop(HASHES)
    return Split(
        source=source,
        windows=Windows(**columns),
        counts=meta["counts"],
        faults=meta["faults"],
        notes=meta["notes"],
        question_hashes=hashes,
        config=config,
    )


def split_line(split: Split) -> str:
    """Return the line that is logged about a split: its counts and the questions left out."""
    counts = split.counts
    line = (
        f"{split.source.name}: {counts['questions']:,} questions on "
        f"{counts['texts']:,} texts ({counts['unanswerable']:,} unanswerable), "
        f"{counts['windows']:,} windows, {counts['tokens']:,} tokens"
    )
    if split.faults:
        kinds = ", ".join(f"{count} {kind}" for kind, count in split.faults.items())
        line += f"; left out: {kinds}"
    for text, count in split.notes.items():
        if count:
            line += f"; {count:,} {text}"
    return line


def warn_of_unknown_tokens(split: Split, tokenizer: PreTrainedTokenizerBase) -> None:
    """Log a warning if the tokenizer has no tokens for much of a split's contexts, as that of an
    English model for texts in Chinese: all that it lacks is one token to the model.
    """
    context_ids = split.windows.context_ids
    unknown = np.count_nonzero(context_ids == tokenizer.unk_token_id)  # 0 if it has no such token
    share = unknown / max(1, len(context_ids))
    if share > MOST_UNKNOWN:
        log.warning(
            "data.%s: %.0f %% of the tokens of its texts are %s, which the tokenizer does not know "
            "and the model cannot read; set a model of their language",
            split.source.split,
            100 * share,
            tokenizer.unk_token,
        )


class SquadData(NamedTuple):
    """Data of a trial: both splits, encoded with one tokenizer."""

    tokenizer: PreTrainedTokenizerBase
    train: Split
    validation: Split

    @classmethod
    def load(cls, config: Config, hparams: HParams) -> "SquadData":
        """Load `data:` of an experiment config.

        Raises:
            UserError: data or keys are invalid.
        """
        data = parse_data_config(config)
        # Files first: one that is not there needs no model to be downloaded.
        sources = [open_split(data, split) for split in ("train", "validation")]
        tokenizer = load_tokenizer(data, hparams)
        check_span_model(hparams, tokenizer)
        train, validation = (load_split(data, source, tokenizer, hparams) for source in sources)
        # The generated world has words of its own, which no other text has.
        if data.validation == "generated" and data.train != "generated":
            log.warning(
                "data.validation: the generated world, and data.train is %s: the scores say "
                "nothing of it; set data.validation, or data.validation_fraction",
                data.train,
            )

        # Scores on questions that were trained on say nothing of others.
        shared = np.isin(validation.question_hashes, train.question_hashes).sum()
        if shared:
            log.warning(
                "data.validation: %s of its %s questions are in data.train, too: scores too high",
                f"{shared:,}",
                f"{len(validation.question_hashes):,}",
            )
        for split in (train, validation):
            warn_of_unknown_tokens(split, tokenizer)
        return cls(tokenizer=tokenizer, train=train, validation=validation)

    def summary(self) -> DataSummary:
        """Return what a run logs of its data."""
        return DataSummary(
            lines={"train": split_line(self.train), "validation": split_line(self.validation)},
            windows=len(self.train.windows),
            tokens=self.train.counts["tokens"],
            validation_windows=len(self.validation.windows),
        )

    def fingerprints(self) -> Config:
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
