"""Throughput of every stage, beside the ordinary library way."""
