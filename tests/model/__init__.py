"""Exhaustive search of small clusters: ``python -m tests.model``."""
