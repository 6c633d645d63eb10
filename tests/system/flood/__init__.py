"""A flood of plain publishes, longer than any time-out of the cluster: ``python -m tests.system.flood --messages N --flush always``.

Publisher processes write PUB frames that were built before, as fast as the nats-server takes them. Nobody waits for an ack, so
nobody can be told "no": everything that was sent must be in the log of all replicas, or be counted by a node as dropped, with the
reason. No load is a reason for an election or for a shorter ISR [A11]: LeaderEpoch and ISR are the same all the time.
"""
