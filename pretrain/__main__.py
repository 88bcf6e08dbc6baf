"""Write the token shards of an experiment, to upload them where a cluster reads them.

python -m pretrain --config configs/pretrain_base.yaml --output shards
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

from detalbert.corpus.examples import ExampleKind
from detalbert.corpus.reader import Corpus
from detalbert.corpus.writer import write_shards
from detalbert.errors import UserError
from detalbert.settings import experiment
from detalbert.settings.text import parse_text_config
from pretrain.data import load_tokenizer
from pretrain.hparams import parse_pretrain_hparams


def main(argv: list[str] | None = None) -> int:
    """Write the shards; return the exit status: 0 done, 2 a user error."""
    parser = argparse.ArgumentParser(prog="python -m pretrain", description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="experiment config")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="shards")
    parser.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE")
    parser.add_argument("--processes", type=int, help="number of processes (default: one per core)")
    args = parser.parse_args(argv)
    try:
        config = experiment.load(args.config, args.set)
        hparams = parse_pretrain_hparams(config.get("hyperparameters"))
        data = parse_text_config(config.get("data"))
        if data.text is None:
            raise UserError("data.text: missing; these shards are made of text")
        tokenizer = load_tokenizer(data, hparams)
        kind = ExampleKind(hparams.max_seq_length)
        folder = write_shards(data, tokenizer, kind, args.output, args.processes)
        tokenizer.save_pretrained(folder / "tokenizer")
        for split in ("train", "validation"):
            corpus = Corpus(str(folder), split, data)
            print(f"{split:<12}{corpus.describe()}")
    except UserError as error:
        print(f"pretrain: {error.kind}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
