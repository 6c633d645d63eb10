"""Bytes <-> values: envelope, replication frames, record batches, subjects. Pure; every name on the wire is built here."""
