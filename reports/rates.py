"""Prices that a report uses, by region and instance type: of a price file, or AWS's."""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import date, datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pandas as pd

from cluster.facts import live_prices
from cluster.facts.prices import PRICE_FILE, Price, load_prices, price_rows, prices_in

Place: TypeAlias = tuple[str, str]  # name of a table of prices, and the region to ask AWS in


class PricedType(NamedTuple):
    """An instance type in a region; empty: that of the price file."""

    instance: str
    region: str = ""

    def __str__(self) -> str:
        return f"{self.instance} in {self.region}" if self.region else self.instance


History: TypeAlias = Mapping[PricedType, pd.Series]  # dollars an hour from each moment on


class Rates:
    """Prices of machines by region and type; `region` overrides that of all machines."""

    def __init__(
        self,
        path: Path | None = None,
        region: str | None = None,
        live: str | None = None,
        today: date | None = None,
    ) -> None:
        """Load the price file. Raises UserError if it is wrong, or has no price in `region`,
        unless AWS is to be asked (`live`).
        """
        self.path = path or PRICE_FILE
        self.region = region or ""
        self.rows = price_rows(self.path)
        self._kinds = set[PricedType]()
        self._tables = dict[str, dict[str, Price]]()
        self._aws = argparse.Namespace(live=live, region=None, today=today)
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

    def used(self) -> list[Price]:
        """Return the prices of all machines that were asked for by `use`."""
        prices = []
        for kind in sorted(self._kinds):
            price = self.at(kind)
            if price is not None:
                prices.append(price)
        return prices

    def use(self, kinds: Iterable[PricedType]) -> list[str]:
        """Replace the prices of these machines by AWS's if --live is set; return notes."""
        kinds = {*kinds} - self._kinds
        self._kinds |= kinds
        notes = []
        for (place, region), types in self._places(kinds).items():
            table = self.table(place)
            base = {name: self.rows[name][0] for name in types}
            fresh, lacking = live_prices.priced(
                self._aws,
                base | table,
                types,
                region,
            )
            notes += lacking
            for name in types:
                if name in table or fresh[name].region == region:
                    table[name] = fresh[name]
        return notes

    def use_named(self, texts: Iterable[str]) -> list[str]:
        """Do the same for the machines of each `RUN@INSTANCE` or `RUN@INSTANCE:spot`."""
        kinds = []
        for text in texts:
            _, at, machine = text.rpartition("@")
            if at:
                kinds.append(self.kind(machine.partition(":")[0]))
        return self.use(kinds)

    def history(
        self,
        kinds: Iterable[PricedType],
        since: datetime,
        until: datetime,
    ) -> tuple[History, list[str]]:
        """Return past spot prices of these machines if --live is set, and notes."""
        series = {}
        notes = []
        for (place, region), types in self._places(kinds).items():
            past, lacking = live_prices.history(
                self._aws,
                types,
                region,
                since,
                until,
            )
            for name, prices in past.items():
                series[PricedType(name, place)] = prices
            notes += lacking
        return series, notes

    def _places(self, kinds: Iterable[PricedType]) -> dict[Place, list[str]]:
        """Return types by place; none without --live."""
        places = defaultdict[Place, list[str]](list)
        for name, place in sorted({*kinds}):
            if self._aws.live and name in self.rows:
                region = place or self.rows[name][0].region
                places[place, region].append(name)
        return dict(places)
