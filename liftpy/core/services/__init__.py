"""Replicated services: the state machine, its outbox, snapshots, replies and sessions. Pure."""
