"""Put a checkpoint of a cluster into Determined's model registry, with its scores.

python -m detalbert.inference.register experiment:3 --as squad-albert
python predict.py --model model:squad-albert            # the newest version; model:squad-albert:1

The model is created if none has that name. A checkpoint that it already has is not added again.
Exit status 0; 2 or 4 with one line that says what is wrong.
"""

import argparse
import sys
from typing import Any

from detalbert import __version__


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="detalbert.inference.register",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"detalbert {__version__}")
    parser.add_argument("checkpoint", help="experiment:ID or trial:ID (its best), or a UUID")
    parser.add_argument("--as", dest="name", required=True, help="name of the registered model")
    return parser.parse_args(argv)


if __name__ == "__main__":
    parse_arguments(None)  # --help and mistakes need none of the imports below

from detalbert.determined_internals import register_version
from detalbert.errors import UserError
from detalbert.inference.export import markdown_table, shown_value
from detalbert.inference.find import fetch, find_remote, is_reference, read_json, told
from detalbert.log import fail
from detalbert.training.folder import SCORES

THRESHOLD = "null_score_diff_threshold"


def main(argv: list[str] | None = None) -> int:
    """Register the checkpoint; return the exit status."""
    args = parse_arguments(argv)
    try:
        if not is_reference(args.checkpoint) or args.checkpoint.startswith("model:"):
            raise UserError(f"{args.checkpoint}: give experiment:ID, trial:ID or a UUID")
        if not args.name or set(args.name) & set(":/"):
            raise UserError(f"--as {args.name}: a name without ':' and '/'")
        with told(args.checkpoint):
            print(register(find_remote(args.checkpoint), args.name))
    except UserError as error:
        return fail("detalbert.inference.register", error)
    return 0


def register(checkpoint: Any, name: str) -> str:
    """Add the client's `checkpoint` to model `name`; return the text for the user."""
    from determined.common.api import errors
    from determined.experimental import client

    facts = describe_checkpoint(checkpoint)  # first: what cannot be read leaves no empty model
    master = client.Determined()
    try:
        model = master.get_model(name)
    except errors.NotFoundException:
        model = master.create_model(name)
    shown = ", ".join(f"{key} {shown_value(value)}" for key, value in facts.items())
    for version in model.list_versions():
        if version.checkpoint and version.checkpoint.uuid == checkpoint.uuid:
            there = f"as version {version.model_version}"
            return f"{name} has this checkpoint already, {there}: {shown}"
    texts = {"comment": shown, "notes": markdown_table(facts)}
    number = register_version(model, checkpoint.uuid, **texts, metadata=facts)
    return f"{name} version {number}: {shown}\npython predict.py --model model:{name}:{number}"


def describe_checkpoint(checkpoint: Any) -> dict[str, Any]:
    """Return the searcher's metric, the steps and the other scores; for a question-answering
    checkpoint also the thresholds. These are only in its files, not on the master, so they are
    downloaded as by predict.py.
    """
    facts: dict[str, Any] = {}
    training = checkpoint.training
    if training is not None:
        facts = dict((training.validation_metrics or {}).get("avgMetrics") or {})
    facts.pop("batches", None)  # the steps, by Determined's name
    folder = fetch(checkpoint.uuid)
    facts |= read_json(folder / SCORES)
    # First what the list of versions has room for: the searcher's metric.
    searcher = (training.experiment_config.get("searcher") or {}) if training else {}
    metric = searcher.get("metric", "steps")
    steps = (checkpoint.metadata or {}).get("steps_completed")
    facts = {metric: facts.get(metric), "steps": steps, **facts}
    facts[THRESHOLD] = read_json(folder / "load_data.json").get("hparams", {}).get(THRESHOLD)
    return {key: value for key, value in facts.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
