"""Prices that a report uses, by region and instance type: of a price file, or AWS's."""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pandas as pd

from cluster.facts import live_prices
from cluster.facts.prices import PRICE_FILE, Price, load_prices, price_rows, prices_in


class PricedType(NamedTuple):
    """An instance type in a region; empty: that of the price file."""

    instance: str
    region: str = ""

    def __str__(self) -> str:
        return f"{self.instance} in {self.region}" if self.region else self.instance


History: TypeAlias = Mapping[PricedType, pd.Series]  # dollars an hour from each moment on


class Rates:
    """Prices of machines by region and type; `region` overrides that of all machines."""

    def __init__(self, path: Path | None = None, region: str = "", live: bool = False) -> None:
        """Load the price file. Raises UserError if it is wrong, or has no price in `region`,
        unless AWS is to be asked (`live`).
        """
        self.path, self.region = path or PRICE_FILE, region
        self.rows = price_rows(self.path)
        self._tables = dict[str, dict[str, Price]]()
        if region and not live:
            load_prices(self.path, region)

    def kind(self, instance: str, region: str = "") -> PricedType:
        """Return the machine whose price counts for one that is in `region`."""
        return PricedType(instance, self.region or region)

    def table(self, region: str = "") -> dict[str, Price]:
        """Return the prices of a region by instance type."""
        place = self.region or region
        if place not in self._tables:
            self._tables[place] = dict(prices_in(self.path, place))
        return self._tables[place]

    def at(self, kind: PricedType) -> Price | None:
        """Return the price of a machine; None if it has none there."""
        return self.table(kind.region).get(kind.instance)

    def ask_aws(self, args: argparse.Namespace, kinds: Iterable[PricedType]) -> list[str]:
        """Replace the prices of these machines by AWS's if --live is set; return notes."""
        notes = list[str]()
        for (place, region), wanted in self._places(kinds).items() if args.live else ():
            table = self.table(place)
            base = {kind.instance: self.rows[kind.instance][0] for kind in wanted} | table
            types = [kind.instance for kind in wanted]
            fresh, more = live_prices.priced(args, base, types, region)
            notes += more
            for name in types:
                if name in table or fresh[name].region == region:
                    table[name] = fresh[name]
        return notes

    def history(
        self,
        args: argparse.Namespace,
        kinds: Iterable[PricedType],
        since: datetime,
        until: datetime,
    ) -> tuple[dict[PricedType, pd.Series], list[str]]:
        """Return past spot prices of these machines if --live is set, and notes."""
        series, notes = dict[PricedType, pd.Series](), list[str]()
        for (_, region), wanted in self._places(kinds).items() if args.live else ():
            types = [kind.instance for kind in wanted]
            past, more = live_prices.history(args, types, region, since, until)
            series |= {kind: past[kind.instance] for kind in wanted if kind.instance in past}
            notes += more
        return series, notes

    def _places(self, kinds: Iterable[PricedType]) -> dict[tuple[str, str], list[PricedType]]:
        """Return machines by the name of their table, and the region in which AWS sells them."""
        places = defaultdict[tuple[str, str], list[PricedType]](list)
        for kind in sorted(set(kinds)):
            if kind.instance in self.rows:
                place = self.region or kind.region
                places[place, place or self.rows[kind.instance][0].region].append(kind)
        return dict(places)
