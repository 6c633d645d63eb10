"""Shipped nodes in virtual time: their event loops, NATS servers, disks, clocks and threads under one seed.

    python -m tests.simulation.world --seeds 10

Everything of ``sidecar`` and ``liftpy`` runs as it ships, with nats-py, PySyncObj, asyncio's tasks and futures, and real files. Time,
order, randomness, sockets, NATS servers, threads and the durability of data are simulated. A seed is one history: two runs of it give
the same trace, byte by byte. A seed has a Python process of its own, since ``machine.interposition`` changes the standard library.

Read first ``story`` (what happens in each history), ``profiles`` (which clusters and faults a history has) and ``faults``.

- ``world``: the cluster of one history. ``node_process``: one node of it.
- ``load``: clients, operators, services, backups and attackers.
- ``checks``: the rules. ``checks/logs.py`` has those of records.
- ``machine``: what takes the place of time, threads, disks, network and NATS.
- ``large``: one large cluster. ``planted``: known faults that seeds must find. ``reached``: lines of the product that seeds run.
"""
