"""Write the token shards of an experiment, to upload them where a cluster reads them.

python -m pretrain --config configs/pretrain_base.yaml --output-dir shards
aws s3 sync shards s3://bucket/shards      # then data.shards: s3://bucket/shards, and no text
"""

import os

from detalbert.processes import end_on_signals

if __name__ == "__main__":
    end_on_signals("; run the same command to write the shards that are missing")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import argparse
import sys
from pathlib import Path


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("pretrain", description=__doc__, formatter_class=style)
    add = parser.add_argument
    add("--config", type=Path, required=True, help="experiment config")
    add("--output-dir", type=Path, required=True, help="folder of the shards")
    key = "config key to set, e.g. data.text=wiki.jsonl (repeatable)"
    add("--set", action="append", default=[], metavar="KEY.PATH=VALUE", help=key)
    add("--processes", type=int, help="number of processes (default: one per core)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse_arguments(None)  # --help and mistakes need none of the imports below

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.reader import Corpus
from detalbert.corpus.writer import write_shards
from detalbert.errors import UserError
from detalbert.log import fail, start_logging
from detalbert.settings import experiment
from detalbert.settings.text import parse_text_config
from pretrain.data import load_tokenizer
from pretrain.hparams import parse_pretrain_hparams


def main(argv: list[str] | None = None) -> int:
    """Write the shards; return the exit status."""
    args = parse_arguments(argv)
    start_logging()
    try:
        config = experiment.load(args.config, args.set)
        hparams = parse_pretrain_hparams(config.get("hyperparameters"))
        data = parse_text_config(config.get("data"))
        if data.text is None:
            raise UserError("data.text: missing; these shards are made of text")
        tokenizer = load_tokenizer(data, hparams)
        kind = ExampleKind(hparams.max_seq_length)
        folder = write_shards(data, tokenizer, kind, args.output_dir, args.processes)
        tokenizer.save_pretrained(folder / "tokenizer")
        for split in ("train", "validation"):
            corpus = Corpus(str(folder), split, data)
            print(f"{split:<12}{corpus.describe()}")
    except UserError as error:
        return fail("pretrain", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
