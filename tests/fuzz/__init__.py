"""Fuzzing of everything that takes bytes from the network or the disk: ``python -m tests.fuzz``."""
