"""NATS: ingest, replication, reads, control, acks. The only folder besides ``sidecar/quorum`` that speaks to NATS."""
