"""Benchmarks of the metadata group: ``python -m tests.bench.raft``."""
