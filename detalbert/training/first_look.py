"""A look at files of questions before the libraries of a training are imported: a fault in a sheet
is told in a second. Imports no torch; the price is that small files are read twice.
"""

import itertools
from pathlib import Path

from detalbert.settings.hparams import parse_data_config
from detalbert.settings.values import Config
from detalbert.squad.questions import LeftOut, read_examples
from detalbert.squad.sources import open_split

LARGEST = 5_000_000  # bytes: these take half a second


def check_questions(data: Config) -> None:
    """Read the questions of `data:` that lie in small files of this machine.

    Raises:
        UserError: a key or a question is invalid.
    """
    config = parse_data_config(data)
    splits = {
        "train": (config.train, config.max_train_examples),
        "validation": (config.validation or config.train, config.max_validation_examples),
    }
    for split, (name, limit) in splits.items():
        file = Path(name)
        if file.is_file() and file.stat().st_size <= LARGEST:
            left_out: list[LeftOut] | None = [] if config.skip_invalid else None
            examples = read_examples(open_split(config, split), left_out=left_out)
            for _ in itertools.islice(examples, limit):
                pass
