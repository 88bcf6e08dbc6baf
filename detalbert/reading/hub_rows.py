"""Rows of a data set of the Hugging Face hub, memory-mapped."""

from typing import Any

from detalbert import hub


def load_hub_rows(name: str, split: str, problem: str) -> Any:
    """Load a split of a data set NAME, NAME@REVISION or NAME:CONFIG.

    Args:
        problem: how the message begins if it does not load.

    Raises:
        UserError: as `hub_errors` does.
    """
    import datasets  # takes a second, and few runs need it

    place, _, config = name.partition(":")
    with hub.hub_errors(problem):
        return hub.load_named(
            datasets.load_dataset,
            place,
            "dataset",
            split=split,
            name=config or None,
        )
