"""Replication: one partition's replica as a pure state machine. Events in, effects out; no clock, no I/O, no payload bytes."""
