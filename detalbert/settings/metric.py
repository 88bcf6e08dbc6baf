"""Metrics of a validation: a workload has one table, from which every list of names follows.

To add a metric, compute it in the workload's reducer and give it a row in its table. All metrics
are in `scores.json` beside the checkpoint and in `metrics.json`, and may be `searcher.metric`.
"""

from typing import NamedTuple


class Metric(NamedTuple):
    """A number that a validation computes.

    Args:
        name: in files, charts and `searcher.metric`.
        charted: whether it is reported to the master: one chart of the WebUI each.
        logged: whether it is in the lines of the log. Those that stand first in the table come
            first; what does not fit a line is left out.
        smaller_is_better: for `searcher.smaller_is_better`.
    """

    name: str
    charted: bool = False
    logged: bool = False
    smaller_is_better: bool = False
