"""Put a checkpoint of a cluster into Determined's model registry, with its scores.

python -m detalbert.inference.register experiment:3 --as squad-albert
python predict.py --model model:squad-albert            # the newest version; model:squad-albert:1

The model is created if none has that name. A checkpoint that it already has is not added again.
Exit status 0; 2 or 4 with one line that says what is wrong.

`det model register-version` has no place for scores, by which a list of versions is read. So the
version is posted with them in one request, as Determined's API takes it and its client does not.
"""

import argparse

from detalbert.command import Parser, refuse_first


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser("detalbert.inference.register", description=__doc__)
    parser.add_argument("checkpoint", help="experiment:ID or trial:ID (its best), or a UUID")
    parser.add_argument("--as", dest="name", required=True, help="name of the registered model")
    return parser.parse_args(argv)


if __name__ == "__main__":
    refuse_first("detalbert.inference.register", lambda: parse_arguments(None))

from determined.common.api import errors
from determined.experimental import client

from detalbert.determined_internals import register_version
from detalbert.errors import UserError
from detalbert.inference.export import markdown_table, shown_value
from detalbert.inference.find import client_errors_as_user_errors, fetch, find_remote, read_json
from detalbert.log import exit_with, fail
from detalbert.sums import Json
from detalbert.training.folder import SCORES


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    try:
        args = parse_arguments(argv)
        print(register(args.checkpoint, args.name))
    except UserError as error:
        return fail("detalbert.inference.register", error)
    return 0


def register(reference: str, name: str) -> str:
    """Add a checkpoint of the cluster to the model `name`; return the text for the user.

    Args:
        reference: experiment:ID or trial:ID (its best checkpoint), or a checkpoint's UUID.

    Raises:
        UserError: reference or name are none, the checkpoint does not exist or cannot be read.
        Unavailable: the master or the storage does not answer.
    """
    if reference.startswith("model:"):
        raise UserError("give experiment:ID, trial:ID or a UUID", key=reference)
    if not name or ":" in name or "/" in name:
        raise UserError("a name without ':' and '/'", key=f"--as {name}")
    with client_errors_as_user_errors(reference):
        checkpoint = find_remote(reference, key=reference)
        scores = describe_checkpoint(checkpoint)  # first: what cannot be read leaves no empty model
        summary = ", ".join(f"{key} {shown_value(value)}" for key, value in scores.items())
        master = client.Determined()
        try:
            model = master.get_model(name)
        except errors.NotFoundException:
            model = master.create_model(name)

        # A version that is there already is named, not made again.
        for version in model.list_versions():
            if version.checkpoint and version.checkpoint.uuid == checkpoint.uuid:
                number = version.model_version
                return f"{name} has this checkpoint already, as version {number}: {summary}"
        number = register_version(
            model,
            checkpoint.uuid,
            comment=summary,
            notes=markdown_table(scores),
            metadata=scores,
        )
    return f"{name} version {number}: {summary}\npython predict.py --model model:{name}:{number}"


def describe_checkpoint(checkpoint: client.Checkpoint) -> Json:
    """Return the scores of a checkpoint, the searcher's metric first, as it is that by which a list
    of versions is read. The thresholds of answers are in the checkpoint's files only.
    """
    training = checkpoint.training
    assert training is not None, checkpoint.uuid
    metrics = dict(training.validation_metrics.get("avgMetrics") or {})
    metrics.pop("batches", None)  # the steps, by Determined's name
    metric = training.experiment_config["searcher"]["metric"]
    return {
        metric: metrics.pop(metric, None),
        "steps": (checkpoint.metadata or {}).get("steps_completed"),
        **metrics,
        **read_json(fetch(checkpoint.uuid) / SCORES),
    }


if __name__ == "__main__":
    exit_with("detalbert.inference.register", main)
