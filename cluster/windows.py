"""Number of training windows of a data set: known before it is read, or counted."""

import os
import socket
import urllib.request
from pathlib import Path

from cluster import published

# Training windows of the data sets whose size is known before they are read.
WINDOWS = dict.fromkeys(("rajpurkar/squad_v2", "squad_v2", "train-v2.0.json"), published.WINDOWS)
HUB = "huggingface.co"


def count_windows(train: str, config: Path) -> int:
    """Count the windows of a SQuAD-shaped file with the tokenizer and lengths of a config."""
    if "HF_HUB_OFFLINE" not in os.environ and not urllib.request.getproxies():
        try:
            socket.create_connection((HUB, 443), timeout=5).close()
        except OSError:
            os.environ["HF_HUB_OFFLINE"] = "1"  # else its library tries for a minute, in 22 lines
    from data import load_split, load_tokenizer
    from detalbert.settings import experiment
    from detalbert.settings.hparams import parse_data_config, parse_hparams
    from detalbert.squad.sources import open_source

    loaded = experiment.load(config)
    hparams = parse_hparams(experiment.single_values(loaded.get("hyperparameters") or {}))
    data = parse_data_config({**(loaded.get("data") or {}), "train": train})
    open_source(train, "train", Path(data.cache_dir))  # first: a missing file is told at once
    return load_split(data, "train", load_tokenizer(data, hparams), hparams).counts["windows"]
