"""The simulator: a whole cluster in one thread under one seed: virtual clock, simulated NATS and disks, real state machines,
checkers.

    from tests.simulation.replica.run import run_seed
    outcome = run_seed(7, events=20_000)
    assert outcome.violation is None, outcome.report()

What is real: ``Replica``, ``Log`` with record batches, ``ClusterFsm`` with its sessions and election timers. What is simulated, and
how it fails: ``network`` (delay, loss, duplicates, reordering across subjects, no responders, slow consumers, reconnects, cuts in one
direction or of one connection), ``disk`` (loss of the unflushed, errors, full, emptied, flipped bits), ``process`` (kill, power loss,
pause, a host that sleeps, restart), ``clock`` (each machine's own rate),
``group`` (the metadata group as one log whose image reaches each node late). ``checkers`` holds one function per invariant, run after
every step against ghost state that no node can see.
"""
