"""Rounds of faults on real processes, with acknowledged publishes running: ``python -m tests.system.faults --list``.

One stream (3 replicas, min_isr 2, ack ALL) on a cluster of ``sidecar.dev.cluster``; a load outside the nodes remembers every ack.
Each round strikes, waits for the next ack of a publish that was sent after the strike, heals, and waits until the ISR is whole.
At the end every acknowledged record must be at its acked offset in the log of EVERY replica, with its bytes, and the logs of
the replicas must be equal up to the end: ``check``.
"""
