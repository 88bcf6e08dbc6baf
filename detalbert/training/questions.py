"""A run's files of questions, read beside its training.

Before it: a look at small files before the libraries of a training are imported, so that a fault in
a sheet is told in a second. Imports no torch; the price is that these files are read twice.

After it: which questions a model was trained on, looked up in its training's own source, if that is
on this machine. It costs a second for SQuAD, and buys scores that nobody takes for held-out ones.
"""

import itertools
import logging
from pathlib import Path

from detalbert.settings.hparams import parse_data_config
from detalbert.settings.values import Config
from detalbert.squad.example import Example
from detalbert.squad.questions import LeftOut, read_examples
from detalbert.squad.sources import open_split

LARGEST = 5_000_000  # bytes: these take half a second
log = logging.getLogger(__name__)


def check_questions(data: Config) -> None:
    """Read the questions of `data:` that lie in small files of this machine.

    Raises:
        UserError: a key or a question is invalid.
    """
    config = parse_data_config(data)
    names = {
        "train": config.train,
        "validation": config.validation or config.train,
    }
    for split, name in names.items():
        file = Path(name)
        if not file.is_file() or file.stat().st_size > LARGEST:
            continue
        source = open_split(config, split)
        left_out: list[LeftOut] | None = [] if config.skip_invalid else None
        examples = read_examples(source, left_out=left_out)
        for _ in itertools.islice(examples, source.limit):
            pass


class TrainingQuestions:
    """The questions that a model was trained on, if they are on this machine.

    Args:
        data: `data:` of its training; empty: not known.
    """

    def __init__(self, data: Config) -> None:
        self.hashes: set[int] | None = None  # None: not known
        if not data:
            return
        config = parse_data_config(data)
        name = config.train
        official = Path(config.cache_dir, name.removesuffix(".json"), name)
        if not (name == "generated" or Path(name).exists() or official.exists()):
            log.info("which questions were trained on is not known: no %s here", name)
            return
        source = open_split(config, "train")
        examples = read_examples(source, answers_needed=False, left_out=[])
        self.hashes = {_hash(example) for example in examples}

    def has(self, example: Example) -> bool | None:
        """Return whether the model was trained on a question; None if that is not known."""
        return None if self.hashes is None else _hash(example) in self.hashes


def _hash(example: Example) -> int:
    return hash((example.question.strip(), example.context.strip()))
