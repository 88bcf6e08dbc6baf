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
from detalbert.errors import UserError, counted
from detalbert.files import cached_folder
from detalbert.progress import waiting
from detalbert.settings.hparams import DataConfig, HParams, parse_data_config
from detalbert.settings.values import Config
from detalbert.squad.encoding import named_tokenizer, tokenizer_sum
from detalbert.squad.example import Example
from detalbert.squad.questions import LeftOut, read_examples
from detalbert.squad.sources import Source, open_split
from detalbert.squad.windows import Windows, build_windows
from detalbert.sums import json_sum, load_json
from detalbert.training.workload import DataSummary

# Of a cache; raise it when the columns or their meaning change, or files are read otherwise.
FORMAT = 10
# Share of the tokens of contexts that may be unknown without a warning; of SQuAD it is 0.0016.
MOST_UNKNOWN = 0.05
# In a cache: names of the columns, and counts.
META = "meta.json"
# What is logged of a split.
LINE = (
    "{}: {} on {} ({unanswerable:,} unanswerable), {} ({with_answer:,} with an answer), "
    "{tokens:,} tokens"
)
# The column of the questions' hashes, which is no part of the windows.
HASHES = "asked"
log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Split:
    """One split as model inputs: memory-mapped windows, and counts of questions and errors."""

    source: Source
    config: DataConfig
    windows: Windows
    question_hashes: np.ndarray  # uint64 [questions], of each question and its context
    counts: dict[str, int]  # questions, texts, unanswerable, windows, with_answer, tokens
    notes: dict[str, int]  # questions by what else is to be known of them, or why left out

    @cached_property
    def examples(self) -> list[Example]:
        """The questions in the order of `windows.example_index`; read again from the source."""
        return read_questions(self.config, self.source, notes=Counter())


def read_questions(config: DataConfig, source: Source, notes: Counter[str]) -> list[Example]:
    """Return the questions of a source, up to its limit; `notes` counts what is to be known."""
    left_out: list[LeftOut] | None = [] if config.skip_invalid else None
    questions = read_examples(source, left_out=left_out, counts=notes)
    examples = list(itertools.islice(questions, source.limit))
    notes.update(f"left out: {question.kind}" for question in left_out or ())
    return examples


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
            source.limit,
        ]
    )
    what = f"the questions of {source.name} ({source.split})"

    def build(folder: Path) -> None:
        notes: Counter[str] = Counter()
        with waiting(f"encoding {what}"):
            examples = read_questions(config, source, notes)
            windows = build_windows(
                examples,
                tokenizer,
                max_seq_length=hparams.max_seq_length,
                doc_stride=hparams.doc_stride,
                max_query_length=longest,
                notes=notes,
            )
            _write(folder, examples, windows, notes)

    folder = Path(config.cache_dir) / f"windows-{source.split}-{key[:24]}"
    cached_folder(folder, key=key, build=build, what=what)

    # Each start logs the counts; the columns are mapped.
    meta = load_json(folder / META)
    columns = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in meta["columns"]}
    return Split(
        source,
        config,
        question_hashes=columns.pop(HASHES),
        windows=Windows(**columns),
        counts=meta["counts"],
        notes=meta["notes"],
    )


def _write(
    folder: Path, examples: Sequence[Example], windows: Windows, notes: Counter[str]
) -> None:
    """Write the cache of encoded questions."""
    # A hash of each question and its context, uint64 [examples].
    digests = []
    for example in examples:
        text = repr((example.question, example.context))
        digests.append(hashlib.blake2b(text.encode(), digest_size=8).digest())
    hashes = np.frombuffer(b"".join(digests), np.uint64)
    columns = {**windows.columns(), HASHES: hashes}
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column)
    counts = {
        "questions": len(examples),
        "texts": len({example.context for example in examples}),
        "unanswerable": sum(not example.answers for example in examples),
        "windows": len(windows),
        "with_answer": int(np.count_nonzero(windows.holds_answer > 0)),
        "tokens": int(windows.lengths.sum(dtype=np.int64)),
    }
    meta = {"columns": list(columns), "counts": counts, "notes": notes}
    (folder / META).write_text(json.dumps(meta))


def split_line(split: Split) -> str:
    """Return the line that is logged about a split: its counts and notes."""
    nouns = [counted(split.counts[f"{noun}s"], noun) for noun in ("question", "text", "window")]
    line = LINE.format(split.source.name, *nouns, **split.counts)
    for text, count in split.notes.items():
        if count:
            line += f"; {count:,} {text}"
    return line


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
                "data.validation: questions of it that are in data.train, too: %s of %s; scores "
                "too high",
                f"{shared:,}",
                f"{len(validation.question_hashes):,}",
            )
        # As of an English model for texts in Chinese: all that it lacks is one token to the model.
        for split in (train, validation):
            share = np.mean(split.windows.context_ids == tokenizer.unk_token_id)
            if share > MOST_UNKNOWN:
                log.warning(
                    "data.%s: %.0f %% of the tokens of its texts are %s, which the tokenizer does "
                    "not know and the model cannot read; set a model of their language",
                    split.source.split,
                    100 * share,
                    tokenizer.unk_token,
                )
        return cls(tokenizer=tokenizer, train=train, validation=validation)

    @property
    def left_out(self) -> int:
        """Training windows that each epoch leaves out, of those that do not hold their answer."""
        misses = np.count_nonzero(self.train.windows.holds_answer == 0)
        wanted = (1 - self.train.config.no_answer_windows) * misses
        return min(round(wanted), len(self.train.windows) - 1)  # an epoch has a window

    def summary(self) -> DataSummary:
        """Return what a run logs of its data."""
        train = split_line(self.train)
        windows = len(self.train.windows) - self.left_out
        if self.left_out:
            train += f"; an epoch leaves {self.left_out:,} windows without an answer out"
        return DataSummary(
            lines={"train": train, "validation": split_line(self.validation)},
            windows=windows,
            tokens=self.train.counts["tokens"] * windows // len(self.train.windows),
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
            "data.language": config.language,  # by which the best step is chosen
            "data.no_answer_windows": config.no_answer_windows,
        }
