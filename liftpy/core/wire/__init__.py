"""Converts between bytes and values: envelope, replication frames, record batches, subjects.

All names on the wire are built here. Pure.
"""
