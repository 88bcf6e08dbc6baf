"""Questions that a model was trained on, looked up in its training's own source, if that is on this
machine. That costs a second for SQuAD, and buys scores that nobody takes for held-out ones.
"""

import logging
from pathlib import Path

from detalbert.settings.hparams import parse_data_config
from detalbert.settings.values import Config
from detalbert.squad.example import Example
from detalbert.squad.questions import read_examples
from detalbert.squad.sources import open_split

log = logging.getLogger(__name__)


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
