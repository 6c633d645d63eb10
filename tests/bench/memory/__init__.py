"""Benchmark of the memory of a partition."""
