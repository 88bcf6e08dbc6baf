"""What a command asks of a master: its records, and who pays for which time of its machines."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from detalbert.errors import UserError
from reports import records, shares
from reports.rates import Rates
from reports.run import machine_of
from reports.usage import Records, Selection, whole_span


class Ledger(NamedTuple):
    """Records, with the dollars and hours of `shares.segments`, and notes on their prices."""

    records: Records
    table: pd.DataFrame
    notes: list[str]


def fetch_ledger(
    selection: Selection, rates: Rates, priced_pools: Sequence[str] = ()
) -> Ledger | None:
    """Return the ledger of what is selected, None if nothing is.

    `priced_pools` are POOL=INSTANCE[:spot]. Raises UserError for a pool that the master lacks.
    """
    recorded = records.fetch(selection)
    pools = dict(recorded.pools) if recorded else {}
    for text in priced_pools:
        name, _, machine = text.partition("=")
        price, spot = machine_of(f"--price-pool {name}=", machine, rates.table())
        if name not in pools:
            seen = f"has {', '.join(pools)}" if recorded else "is not asked; give --experiment"
            raise UserError(f"--price-pool {name}: no such pool; the master {seen}")
        pools[name] = pools[name]._replace(instance=price.instance, spot=spot)
    if recorded is None:
        return None

    recorded = recorded._replace(pools=pools)
    used = [machine.pool for machine in shares.machines(recorded) if machine.pool.instance]
    notes = rates.use(rates.kind(pool.instance, pool.region) for pool in used)
    on_spot = [rates.kind(pool.instance, pool.region) for pool in used if pool.spot]
    since = recorded.since
    if since is None:
        held = recorded.allocations
        since = whole_span(held)[0] if held else recorded.until
    past, on_past = rates.history(on_spot, since - records.LOOK_BACK, recorded.until)
    table = shares.segments(recorded, rates, past)
    return Ledger(recorded, table, [*notes, *on_past, *recorded.notes])
