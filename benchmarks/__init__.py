"""Throughput of this package, compared with the usual libraries: see docs/speed.md."""
