"""A cluster in memory for tests: no processes, no ports, no nats-server. It starts in milliseconds.

    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("orders", "shop.orders")
        await client.publish("orders", b"one")

    with memory_cluster() as cluster, cluster.sync_client() as client:
        client.create_stream("orders", "shop.orders")

The client is the real one. The nodes run the shipped partitions (``sidecar/partition``) and the state machine of the metadata
group (``ClusterFsm``). Sockets, disks and Raft are missing. The page on testing lists the differences.
"""

from __future__ import annotations

from liftpy.testing.memory.cluster import MemoryCluster, memory_cluster

__all__ = ["MemoryCluster", "memory_cluster"]
