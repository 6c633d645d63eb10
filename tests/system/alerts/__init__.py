"""``python -m tests.system.alerts``: a real Prometheus over faults of a cluster: each alert fires for its fault, and no other."""
