"""Write prices.yaml anew from SkyPilot's catalog of AWS, in all its regions (for maintainers).

python -m cluster.facts.update vms.csv --commit 00148f2 --day 2026-05-24

vms.csv is catalogs/v8/aws/vms.csv of github.com/skypilot-org/skypilot-catalog at that commit; the day
is the commit's. What stands above the line MARK was typed in by hand and stays: types that the
catalog lacks, and retired ones. A spot price is the median over a region's zones, between the lowest
and the highest. The catalog has no spot price of some types: spot_discount is 0 there.
"""

import argparse
import csv
import datetime
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from cluster.machines import DETERMINED_SLOTS, EC2_GPUS
from cluster.prices import PRICE_FILE, load_prices
from detalbert.atomic import whole_file

MARK = "  # From the catalog, by update.py:\n"
Zones = dict[str, dict[str, list[dict[str, str]]]]  # rows of the catalog by type and region


def main(argv: list[str] | None = None) -> None:
    """Read the catalog and replace the price file."""
    parser = argparse.ArgumentParser(prog="cluster.facts.update", description=__doc__)
    parser.add_argument("catalog", type=Path)
    parser.add_argument("--commit", required=True, help="of the catalog")
    parser.add_argument("--day", required=True, type=datetime.date.fromisoformat)
    parser.add_argument("--file", type=Path, default=PRICE_FILE, help="default: prices.yaml")
    args = parser.parse_args(argv)
    kept, mark, _ = args.file.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        sys.exit(f"{args.file}: no line {MARK.strip()!r}")
    kept = re.sub(r"(?m)^date: .*$", f"date: {args.day}", kept, count=1)
    source = (
        f"source: AWS price list (on demand) and spot prices, by SkyPilot's catalog {args.commit}"
    )
    kept = re.sub(r"(?m)^source: .*$", source, kept, count=1)
    by_hand = yaml.safe_load(kept)["instances"] or {}
    with args.catalog.open(encoding="utf-8", newline="") as file:
        rows = prices_of(csv.DictReader(file), set(by_hand))
    text = yaml.safe_dump(rows, sort_keys=False, default_flow_style=None, width=200)
    with whole_file(args.file) as file:
        file.write(kept + MARK + re.sub(r"(?m)^", "  ", text).rstrip(" "))
    load_prices(args.file)


def prices_of(catalog: Iterable[dict[str, str]], by_hand: set[str]) -> dict[str, Any]:
    """Return the price file's rows of all GPU machines that are known and not typed in by hand."""
    zones: Zones = defaultdict(lambda: defaultdict(list))
    wanted = {kind for kind, slots in {**DETERMINED_SLOTS, **EC2_GPUS}.items() if slots} - by_hand
    for row in catalog:
        if row["InstanceType"] in wanted and row["Price"]:
            zones[row["InstanceType"]][row["Region"]].append(row)
    return {
        kind: {"regions": {region: _price(rows) for region, rows in sorted(regions.items())}}
        for kind, regions in sorted(zones.items())
    }


def _price(rows: list[dict[str, str]]) -> dict[str, float]:
    """Return the prices of a type in a region, of whose zones these are the rows."""
    price = {"on_demand": float(rows[0]["Price"])}
    spot = [float(row["SpotPrice"]) for row in rows if row["SpotPrice"]]
    if not spot:
        return {**price, "spot_discount": 0.0}
    middle = round(statistics.median(spot), 4)
    return {**price, "spot": middle, "spot_low": min(spot), "spot_high": max(spot)}


if __name__ == "__main__":
    main()
