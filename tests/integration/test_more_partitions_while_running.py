"""On real processes: streams wait for nodes and are placed; partitions are added under publishers and readers that run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from liftpy.client import connect
from sidecar.dev.cluster import DevCluster
from tests.integration.test_node_cli import liftpy

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


async def published_and_read(url: str, cluster: DevCluster) -> None:
    """A publisher and readers that were there before the partitions were."""
    async with await connect(url) as client:
        async with client.publisher("orders", 0) as publisher:
            await publisher.send(b"before")
            code, said = await asyncio.to_thread(liftpy, cluster, "stream", "add-partitions", "orders", "--partitions", "4")
            assert code == 0, said
            assert len(said["partitions"]) == 4
            await publisher.send(b"after")
        for partition in range(1, 4):
            assert (await client.publish("orders", b"new", partition=partition)).partition == partition
            assert [record.value async for record in client.consume("orders", partition, start="earliest", until="end")] == [
                b"new"
            ]
        old = [record.value async for record in client.consume("orders", start="earliest", until="end")]
        assert old == [b"before", b"after"]


def test_streams_that_wait_for_nodes_are_placed_when_a_node_joins(tmp_path: Path) -> None:
    with DevCluster(4) as cluster:
        assert cluster.nodes["n4"].terminate() == 0
        code, made = liftpy(cluster, "stream", "create", "wide", "--subject", "wide", "--partitions", "2", "--replicas", "4")
        assert code == 0, made
        assert (made["status"], made["waiting"], made["partitions"]) == ("insufficient-nodes", 2, [])
        assert liftpy(cluster, "stream", "show", "wide")[1]["waits"] == "not enough nodes: 1 more needed"

        code, said = liftpy(cluster, "stream", "create", "orders", "--subject", "shop.orders", "--placement", "least-loaded")
        assert code == 0, said
        asyncio.run(published_and_read(cluster.nats_url, cluster))

        file = tmp_path / "map.json"
        file.write_text(json.dumps([{"id": 0, "replicas": ["n2", "n3"]}, {"id": 1, "replicas": ["n3", "n1"]}]))
        code, planned = liftpy(cluster, "stream", "create", "hand", "--subject", "hand", "--assignment", str(file), "--dry-run")
        assert code == 0, planned
        assert planned["nodes"]["n3"]["new_replicas"] == 2
        code, made = liftpy(cluster, "stream", "create", "hand", "--subject", "hand", "--assignment", str(file))
        assert code == 0, made
        assert [p["replicas"] for p in made["partitions"]] == [["n2", "n3"], ["n3", "n1"]]
        assert liftpy(cluster, "node", "set-weight", "n1", "0")[1]["weight"] == 0
        code, made = liftpy(cluster, "stream", "create", "r", "--subject", "r", "--placement", "rendezvous", "--replicas", "2")
        assert sorted(made["partitions"][0]["replicas"]) == ["n2", "n3"]

        cluster.nodes["n4"].start()
        cluster.nodes["n4"].wait_ready()
        asyncio.run(placed(cluster.nats_url))


async def placed(url: str) -> None:
    async with await connect(url) as client:
        stream = await client.admin.until_ready(await client.stream("wide"), 60)
        assert all(len(partition.replicas) == 4 for partition in stream.partitions)
        assert (await client.publish("wide", b"x", partition=1)).offset == 0
