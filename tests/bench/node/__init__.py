"""Benchmarks of whole nodes on real processes."""
