"""Prices of machines by region and instance type: of a price file, or AWS's.

Commands name the machines that they are about to use (`use`), so that AWS is asked once for each
region and for no other machine; what nobody asked AWS for keeps the price of the file.
"""

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import pandas as pd

from cluster.facts import live_prices
from cluster.facts.live_prices import Live
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

    def __init__(
        self,
        path: Path | None = None,
        region: str | None = None,
        live: str | None = None,
        today: datetime.date | None = None,
    ) -> None:
        """Load the price file.

        Args:
            path: None: the package's.
            live: `must` or `try`: whether AWS has to answer; None: it is not asked.
            today: the day of AWS's answers.

        Raises:
            UserError: if the file is wrong, or has no price in `region` and AWS is not asked.
        """
        self.path = path or PRICE_FILE
        self.region = region or ""
        self.rows = price_rows(self.path)
        self._kinds = set[PricedType]()
        self._tables = dict[str, dict[str, Price]]()
        self._live = None
        if live is not None:
            self._live = Live(must=live == "must", today=today or datetime.date.today())
        elif region:
            load_prices(self.path, region)  # for its error, if the file has no price there

    def kind(self, instance: str, region: str = "") -> PricedType:
        """Return the machine whose price counts for one that is in `region`."""
        return PricedType(instance, region=self.region or region)

    def table(self, region: str = "") -> dict[str, Price]:
        """Return the prices of a region by instance type."""
        place = self.region or region
        if place not in self._tables:
            self._tables[place] = dict(prices_in(self.path, place))
        return self._tables[place]

    def at(self, kind: PricedType) -> Price | None:
        """Return the price of a machine; None if it has none there."""
        return self.table(kind.region).get(kind.instance)

    def unpriced(self) -> list[str]:
        """Return the types with GPUs for sale that have no price in the region of all machines."""
        types = [name for name, rows in self.rows.items() if rows[0].slots and not rows[0].retired]
        return sorted(set(types) - set(self.table()))

    def used(self) -> list[Price]:
        """Return the prices of all machines that were asked for by `use`."""
        prices = [self.at(kind) for kind in sorted(self._kinds)]
        return [price for price in prices if price is not None]

    def use(self, kinds: Iterable[PricedType]) -> list[str]:
        """Replace the prices of these machines by AWS's if it is to be asked; return notes."""
        new_kinds = set(kinds) - self._kinds
        self._kinds |= new_kinds
        notes = list[str]()
        if self._live is None:
            return notes
        for region, region_kinds in self._by_region(new_kinds).items():
            file_prices = {}
            for kind in region_kinds:
                # Of a type that has no price there, its first one stands in.
                file_prices[kind.instance] = self.at(kind) or self.rows[kind.instance][0]
            fresh, region_notes = live_prices.priced(self._live, file_prices, region)
            notes += region_notes

            # A stand-in for which AWS has no price either must not get into the table.
            for kind in region_kinds:
                table = self.table(kind.region)
                price = fresh[kind.instance]
                if kind.instance in table or price.region == region:
                    table[kind.instance] = price
        return notes

    def use_named(self, texts: Iterable[str]) -> list[str]:
        """Do the same for the machines of each `RUN@INSTANCE` or `RUN@INSTANCE:spot`."""
        kinds = []
        for text in texts:
            # Of a text without an @ the run has no price, and no machine to ask for.
            _, at, machine = text.rpartition("@")
            if at:
                kinds.append(self.kind(machine.partition(":")[0]))
        return self.use(kinds)

    def history(
        self, kinds: Iterable[PricedType], since: datetime.datetime, until: datetime.datetime
    ) -> tuple[dict[PricedType, pd.Series], list[str]]:
        """Return past spot prices of these machines if AWS is to be asked, and notes."""
        series = dict[PricedType, pd.Series]()
        notes = list[str]()
        if self._live is None:
            return series, notes
        for region, region_kinds in self._by_region(kinds).items():
            past, region_notes = live_prices.history(
                self._live,
                wanted=[kind.instance for kind in region_kinds],
                region=region,
                since=since,
                until=until,
            )
            notes += region_notes
            for kind in region_kinds:
                if kind.instance in past:
                    series[kind] = past[kind.instance]
        return series, notes

    def _by_region(self, kinds: Iterable[PricedType]) -> dict[str, list[PricedType]]:
        """Return the machines of the price file by the region in which AWS sells them."""
        by_region = defaultdict[str, list[PricedType]](list)
        for kind in sorted(set(kinds)):
            if kind.instance in self.rows:
                file_region = self.rows[kind.instance][0].region
                region = self.region or kind.region or file_region
                by_region[region].append(kind)
        return dict(by_region)
