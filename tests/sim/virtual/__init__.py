"""The shipped node in virtual time: an event loop, a NATS cluster, disks, clocks and threads under one seed.

    python -m tests.simulation.world --seeds 10

What is real: everything of ``sidecar`` and ``liftpy`` (composition, partitions, metadata group on PySyncObj, coordinators, status,
the client), nats-py, asyncio's tasks and futures, and the files. What is simulated: time, order, randomness, sockets, the NATS
servers, threads, and what a disk keeps. A seed is one history: two runs of it give the same trace, byte by byte.

The modules: ``scheduler`` (time and processes), ``interposition`` (what Python's own modules give to a simulated process), ``loop``
(asyncio's loop), ``network`` (connections), ``nats_server``, ``disk``, ``node_process``, ``world`` (one history), ``checks``.
A seed has a Python process of its own (``tests/simulation/world``), since ``interposition`` changes the standard library.
"""
