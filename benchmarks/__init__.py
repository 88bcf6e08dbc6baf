"""Throughput of every stage of this package, beside the ordinary library way of doing the same.

    python -m benchmarks featurize --json benchmarks/results/featurize.json
    python -m benchmarks all
    python -m benchmarks render

Both sides run in turn in one process, after a warm-up, and must give equal results: a stage whose
sides differ fails. What a result holds is in `measure.py`, how the peer works in `peer.py`.
"""
