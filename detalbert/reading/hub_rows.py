"""Rows of a data set of the Hugging Face hub, memory-mapped."""

from typing import Any

from detalbert import hub


def load_hub_rows(name: str, split: str, key: str, problem: str) -> Any:
    """Load a split of a data set NAME, NAME@REVISION or NAME:CONFIG.

    Args:
        key: of a config, which names the data set.
        problem: what is wrong if it does not load; the reason follows.

    Raises:
        UserError: as `hub_errors` does.
    """
    import datasets  # takes a second, and few runs need it

    place, _, config = name.partition(":")
    with hub.hub_errors(problem, key=key):
        return hub.load_named(
            datasets.load_dataset,
            place,
            "dataset",
            split=split,
            name=config or None,
        )
