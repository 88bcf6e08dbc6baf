"""Write prices.yaml anew from SkyPilot's catalog of AWS, in all its regions (for maintainers).

python -m cluster.facts.update vms.csv --commit 00148f2 --day 2026-05-24

vms.csv is catalogs/v8/aws/vms.csv of github.com/skypilot-org/skypilot-catalog at that commit, of
that day. Rows above the line MARK are typed in by hand and stay: types that the catalog lacks, and
retired ones. A spot price is the median over a region's zones, else that on demand.
"""

import argparse
import datetime
import re
from collections.abc import Container
from pathlib import Path

import pandas as pd
import yaml

from cluster.facts.machines import SLOTS
from cluster.facts.prices import PRICE_FILE, load_prices
from detalbert import __version__
from detalbert.files import whole_file
from detalbert.settings.values import Config

MARK = "  # From the catalog, by update.py:\n"


def main(argv: list[str] | None = None) -> None:
    """Read the catalog and replace the price file."""
    parser = argparse.ArgumentParser(prog="cluster.facts.update", description=__doc__)
    parser.add_argument("--version", action="version", version=f"detalbert {__version__}")
    parser.add_argument("catalog", type=Path)
    parser.add_argument("--commit", required=True, help="of the catalog")
    parser.add_argument("--day", required=True, type=datetime.date.fromisoformat)
    parser.add_argument("--file", type=Path, default=PRICE_FILE, help="default: prices.yaml")
    args = parser.parse_args(argv)
    old_text = args.file.read_text(encoding="utf-8")
    by_hand, _, _ = old_text.partition(MARK)
    by_hand = re.sub("(?m)^date: .*$", f"date: {args.day}", by_hand)
    by_hand = re.sub("(?m)^source: .*$", f"source: SkyPilot's catalog at {args.commit}", by_hand)
    typed_in = yaml.safe_load(by_hand)["instances"]
    rows = read_catalog(args.catalog, wanted=set(SLOTS) - set(typed_in))
    text = yaml.safe_dump(
        rows,
        sort_keys=False,
        default_flow_style=None,  # a region is one line
        width=200,
    )
    indented = re.sub("(?m)^(?=.)", "  ", text)  # all lines but empty ones, below `instances:`
    with whole_file(args.file) as file:
        file.write(by_hand + MARK + indented)
    load_prices(args.file)  # raises UserError if a row is wrong


def read_catalog(path: Path, wanted: Container[str]) -> Config:
    """Return the rows of `regions` by type, of the wanted types that the catalog has."""
    # A row per type, region and zone; a spot price may be missing.
    table = pd.read_csv(path).dropna(subset=["Price"])
    table = table[[kind in wanted for kind in table["InstanceType"]]]
    zones = table.groupby(["InstanceType", "Region"])
    prices = zones["SpotPrice"].agg(
        spot="median",
        spot_low="min",
        spot_high="max",
    )
    prices = prices.round(4)
    prices.insert(0, "on_demand", zones["Price"].first())
    prices["spot"] = prices["spot"].fillna(prices["on_demand"])
    rows: Config = {}
    for (kind, region), price in prices.iterrows():
        row = rows.setdefault(kind, {"regions": {}})
        row["regions"][region] = price.dropna().to_dict()
    return rows


if __name__ == "__main__":
    main()
