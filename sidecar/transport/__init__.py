"""NATS connections of a node: publishes, replication, reads, control, acks. Only this folder and ``sidecar/quorum`` use
NATS.
"""
