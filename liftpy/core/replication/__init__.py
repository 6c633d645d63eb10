"""Replication: one replica of a partition as a pure state machine. Events go in, effects come out.

There is no clock and no I/O here, and payload bytes never pass through.
"""
