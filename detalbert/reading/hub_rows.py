"""Rows of a data set of the Hugging Face hub, memory-mapped."""

from typing import Any

from detalbert import hub


def load_hub_rows(name: str, split: str, key: str) -> Any:
    """Load a split of a data set NAME, NAME@REVISION or NAME:CONFIG.

    Args:
        key: of a config, which names the data set.

    Raises:
        UserError: as `hub_errors` does.
    """
    import datasets  # takes a second, and few runs need it

    place, _, config = name.partition(":")
    problem = f"{place!r} is no file, and as a data set it does not load"
    with hub.hub_errors(problem, key=key):
        return hub.load_named(
            datasets.load_dataset,
            place,
            "dataset",
            split=split,
            name=config or None,
        )
