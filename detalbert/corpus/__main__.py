"""Write the token shards of an experiment: once, before GPUs wait for them.

python -m detalbert.corpus configs/pretrain_base.yaml --set data.text=wiki.jsonl --output shards
python -m detalbert.corpus configs/lm_1b.yaml --output s3://bucket/shards --workers 32
python -m detalbert.corpus configs/lm_1b.yaml --output s3://bucket/shards --part 1/8   # ... 8/8

Then data.shards: s3://bucket/shards is all that `data:` needs. If it is killed, the same command
goes on and ends with the same bytes.
"""

import os

from detalbert import __version__
from detalbert.arguments import SettingsParser
from detalbert.processes import end_on_signals

if __name__ == "__main__":
    end_on_signals("; run the same command to write the shards that are missing")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import argparse
from pathlib import Path
from pkgutil import resolve_name


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = SettingsParser(
        "detalbert.corpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"detalbert {__version__}")
    parser.add_argument("config", type=Path, help="experiment config")
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
        type=_part,
        metavar="I/N",
        help="write part I of N, from 1/N to N/N, each on a machine of its own (default: all)",
    )
    return parser.parse_args(argv)


def _part(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: give I/N, such as 1/3, 2/3 and 3/3")
    return int(number), int(count)


if __name__ == "__main__":
    parse_arguments(None)  # --help and mistakes need none of the imports below

from detalbert.corpus.index import has_index
from detalbert.corpus.reader import KINDS
from detalbert.corpus.shards import ShardPart
from detalbert.errors import UserError
from detalbert.log import exit_with, fail, start_logging
from detalbert.settings import experiment
from workloads import find_row


def main(argv: list[str] | None = None) -> int:
    """Write the shards; return the exit status."""
    args = parse_arguments(argv)
    start_logging()
    try:
        config = experiment.load(args.config, args.set)
        row = find_row(config)
        if not row.corpus or config["data"].get("shards") is not None:
            raise UserError(f"{args.config}: names no text to write; set data.text or documents")
        parsers = resolve_name(row.parsers)
        data = parsers.data(config.get("data"))
        hparams = parsers.hyperparameters(config.get("hyperparameters"))
        write = resolve_name(row.corpus)
        part = None
        if args.part:
            number, total = args.part
            part = ShardPart(number, total=total)
        address = write(data, hparams, args.output, args.workers, part)
        if not has_index(address):
            return 0  # other parts are missing
        for split in ("train", "validation"):
            print(f"{split:<12}{KINDS[row.kind](address, split, data).describe()}")
    except UserError as error:
        return fail("detalbert.corpus", error)
    return 0


if __name__ == "__main__":
    exit_with("detalbert.corpus", main)
