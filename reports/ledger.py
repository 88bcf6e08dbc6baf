"""The ledger of a master: its records, and who pays for which time of its machines.

All commands read one ledger, so that `runs` and `cost` agree about the dollars of an experiment.
"""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from cluster.facts.prices import parse_machine
from cluster.facts.rates import Rates
from detalbert.errors import UserError
from reports import records, shares
from reports.usage import RecordedPool, Records, Selection


class Ledger(NamedTuple):
    """Records, with the dollars and hours of `shares.segments`, and notes on their prices."""

    records: Records
    table: pd.DataFrame
    notes: list[str]


def fetch_ledger(
    selection: Selection,
    rates: Rates,
    priced_pools: Sequence[str] = (),
) -> Ledger | None:
    """Return the ledger of what is selected, None if nothing is.

    `priced_pools` are POOL=INSTANCE[:spot]. Raises UserError for a pool that the master lacks.
    """
    # Pools are priced before anything else: a typo in a name costs no query to AWS.
    recorded = records.fetch_records(selection)
    pools = _priced_pools(recorded, priced_pools, rates)
    if recorded is None:
        return None
    recorded = recorded._replace(pools=pools)

    # The types whose prices are needed: of spot machines, the past prices of the whole span too.
    kinds = set()
    spot_kinds = set()
    first = recorded.until
    for machine in shares.machines(recorded):
        pool = machine.pool
        if pool.instance:
            kind = rates.kind(pool.instance, pool.region)
            kinds.add(kind)
            first = min(first, machine.start)
            if pool.spot:
                spot_kinds.add(kind)
    notes = rates.use(kinds)
    past, past_notes = rates.history(spot_kinds, since=first, until=recorded.until)
    return Ledger(
        records=recorded,
        table=shares.segments(recorded, rates, past),
        notes=[*notes, *past_notes, *recorded.notes],
    )


def _priced_pools(
    recorded: Records | None,
    priced_pools: Sequence[str],
    rates: Rates,
) -> dict[str, RecordedPool]:
    """Return the pools, some of them at the price of an instance type."""
    pools = dict(recorded.pools) if recorded else {}
    for text in priced_pools:
        name, _, instance = text.partition("=")
        flag = f"--price-pool {name}="
        price, spot = parse_machine(flag, instance, rates.table())
        if name not in pools:
            cure = "the master is not asked; give --experiment"
            if recorded:
                cure = f"the master has {', '.join(pools)}"
            raise UserError("no such pool", key=f"--price-pool {name}", cure=cure)
        pools[name] = pools[name]._replace(instance=price.instance, spot=spot)
    return pools
