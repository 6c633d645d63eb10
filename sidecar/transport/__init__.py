"""NATS connections of a node: publishes, replication, reads, control, acks.

Only this package and ``sidecar/quorum`` use NATS.
"""
