"""Shipped for users' tests and ours: memory storage, simulated network, clock and disk, clusters driven by one seed."""
