"""Simulators: whole clusters under a seed, in virtual time. ``tests/README.md`` says when to run which.

Packages:

- ``replica``: replicas, logs and metadata decisions of the core, on simulated network, disks and clocks.
- ``raft``: the metadata group on Raft.
- ``whole``: ``replica`` with the metadata group of ``raft``.
- ``group``: consumer groups and work queues.
- ``world``: shipped nodes and clients, with everything that runs in their processes.
- ``mutants``: known bugs that the seeds of ``replica`` must find.
"""
