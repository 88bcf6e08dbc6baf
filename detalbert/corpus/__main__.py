"""Write the token shards of an experiment: once, before GPUs wait for them.

python -m detalbert.corpus configs/pretrain_base.yaml --set data.text=wiki.jsonl --output shards
python -m detalbert.corpus configs/lm_1b.yaml --output s3://bucket/shards --workers 32
python -m detalbert.corpus configs/lm_1b.yaml --output s3://bucket/shards --part 1/8   # ... 8/8

Then data.shards: s3://bucket/shards is all that `data:` needs. If it is killed, the same command
goes on and ends with the same bytes.
"""

import os

from detalbert.command import Parser, existing_file, refuse_first
from detalbert.errors import UserError
from detalbert.log import exit_with, fail, start_logging
from detalbert.processes import end_on_signals
from detalbert.settings import experiment
from workloads import WorkloadRow, check_sources, find_row, parsers

if __name__ == "__main__":
    end_on_signals("; run the same command to write the shards that are missing")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import argparse
from pkgutil import resolve_name
from typing import Any


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = Parser("detalbert.corpus", description=__doc__)
    parser.add_argument("config", type=existing_file, help="experiment config")
    parser.add_argument(
        "--output", required=True, help="folder of the shards, or s3://, gs:// or az://"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY.PATH=VALUE",
        help="config key to set, e.g. data.text=wiki.jsonl (repeatable)",
    )
    parser.add_argument("--workers", type=int, help="number of processes (default: one per core)")
    parser.add_argument(
        "--part",
        type=part_i_of_n,
        default=(1, 1),
        metavar="I/N",
        help="write part I of N, from 1/N to N/N, each on a machine of its own (default: 1/1)",
    )
    return parser.parse_args(argv)


def part_i_of_n(text: str) -> tuple[int, int]:
    """Return I and N of I/N. Raises ValueError if it is not such as 1/3, 2/3 or 3/3."""
    number, total = map(int, text.split("/"))
    if not 1 <= number <= total:
        raise ValueError
    return number, total


def read_text_config(args: argparse.Namespace) -> tuple[WorkloadRow, Any, Any]:
    """Return the workload of the config, and its parsed data and hyperparameters. Raises UserError,
    with all problems of the config, also if it names no text.
    """
    config = experiment.load(args.config, args.set)
    values = experiment.check(config, find_parsers=parsers)
    row = find_row(config)
    if not row.corpus or config["data"].get("shards") is not None:
        raise UserError(f"{args.config}: names no text to write; set data.text or documents")
    check_sources(config)
    return row, *parsers(config).both(config["data"], values)


if __name__ == "__main__":
    # --help and mistakes need none of the imports below.
    refuse_first("detalbert.corpus", lambda: read_text_config(parse_arguments(None)))

from detalbert.corpus.read import Corpus, Shards


def main(argv: list[str] | None = None) -> int:
    """Write the shards; return the exit status."""
    start_logging()
    try:
        args = parse_arguments(argv)
        row, data, hparams = read_text_config(args)
        write = resolve_name(row.corpus)
        if write(data, hparams, args.output, args.workers, args.part):
            reader = Corpus if row.kind == Corpus.kind else Shards
            for split in ("train", "validation"):
                print(f"{split:<12}{reader(args.output, split, data).describe()}")
    except UserError as error:
        return fail("detalbert.corpus", error)
    return 0


if __name__ == "__main__":
    exit_with("detalbert.corpus", main)
