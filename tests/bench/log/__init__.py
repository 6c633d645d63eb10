"""Benchmarks of the log beside plain baselines of the same run: ``python -m tests.bench.log``."""
