"""Counts the training windows of a SQuAD-shaped file, where no published count is known."""

from typing import Any

from data import load_split, load_tokenizer, open_split
from detalbert.settings.hparams import HParams, parse_data_config


def count_windows(data: dict[str, Any], hparams: HParams) -> int:
    """Count the windows of `data.train` with the tokenizer and lengths of an experiment.

    Raises UserError if the file or the tokenizer cannot be read.
    """
    keys = parse_data_config(data)
    open_split(keys, "train")  # first: a missing file is told at once
    return load_split(keys, "train", load_tokenizer(keys, hparams), hparams).counts["windows"]
