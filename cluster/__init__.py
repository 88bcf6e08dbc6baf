"""Plans, prices and checks: what a run will cost on a cluster, and whether it will run."""

from pathlib import Path

DATA = Path(__file__).with_name("data")  # tables, each with its sources
