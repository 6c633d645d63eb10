"""A cluster in memory, for the tests of applications: no process, no port, no nats-server, and started in milliseconds.

    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        await client.publish("orders", b"one")

    with memory_cluster() as cluster, cluster.sync_client() as client:
        ...

The client is the real one, with its parser and protocol; the nodes are the state machines that ship: ``Replica``, ``Log``, ``Ingest``,
``Reads``, ``ClusterFsm``. What is missing is the socket, the disk and Raft; docs/testing.md says what differs.
"""

from __future__ import annotations

from liftpy.testing.memory.cluster import MemoryCluster, memory_cluster

__all__ = ["MemoryCluster", "memory_cluster"]
