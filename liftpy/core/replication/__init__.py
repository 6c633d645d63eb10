"""Replication: one replica of a partition as a pure state machine. It takes events and returns effects.

It uses no clock and no I/O, and record bytes never pass through it.
"""
