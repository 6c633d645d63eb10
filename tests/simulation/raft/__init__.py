"""The metadata group under one seed: virtual clock, unreliable bus, crashes, snapshots. ``python -m tests.simulation.raft``."""
