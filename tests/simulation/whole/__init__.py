"""Replicas and the metadata group's Raft in one simulated cluster."""
