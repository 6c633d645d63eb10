"""Nodes come and go, and data follows, under acknowledged load: ``python -m tests.system.moving``."""
