"""NATS: ingest, replication, reads, control, acks. The only folder besides ``sidecar/raft`` that speaks to NATS."""
