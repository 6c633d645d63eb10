"""``liftpy partition`` against a cluster of its own: leaderships are moved, given back, and at last elected with a loss."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from liftpy.client import connect
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.wire.batch import Record
from sidecar.dev.cluster import DevCluster
from tests import fork_server
from tests.until import block_until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    with DevCluster(3, settings={"LIFTPY_REPLICATION_MAX_LAG_TIME_S": "2.5"}) as cluster:
        yield cluster


LIFTPY = [sys.executable, "-c", "from sidecar.cli.main import main; main()"]


def liftpy(cluster: DevCluster, *words: str) -> tuple[int, Any]:
    """(exit code, the JSON on standard output or the text on standard error)."""
    command = [*LIFTPY, *words, "--json", "--nats", cluster.nats_url]
    done = fork_server.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stdout + done.stderr


async def read(cluster: DevCluster, stream: str, **how: Any) -> list[Record]:
    """Everything that is committed, from the start or as said."""
    async with await connect(cluster.nats_url) as client:
        return [record async for record in client.consume(stream, until="end", **how)]


async def partition_of(cluster: DevCluster, stream: str) -> PartitionState:
    async with await connect(cluster.nats_url) as client:
        return (await client.stream(stream)).partitions[0]


def test_partition_whose_only_replica_lost_its_data_stays_offline_until_an_operator_elects_it(cluster: DevCluster) -> None:
    """It does not come back by itself with an empty log [S17, C10]."""

    async def publish() -> str:
        async with connect(cluster.nats_url) as client:
            stream = await client.create_stream("alone", "alone", replicas=1)
            await client.publish("alone", b"1")
            return stream.partitions[0].leader or ""

    node = asyncio.run(publish())
    cluster.nodes[node].kill()
    (folder,) = (cluster.data / node / "streams").glob("alone-*")
    shutil.rmtree(folder)
    cluster.nodes[node].start()
    cluster.nodes[node].wait_ready()
    block_until(
        lambda: asyncio.run(partition_of(cluster, "alone")).state.incomplete,
        "the cluster knows that the node has lost something",
    )
    found = asyncio.run(partition_of(cluster, "alone"))
    assert (found.status, found.isr) == (PartitionStatus.OFFLINE, (node,))
    code, elected = liftpy(cluster, "partition", "elect", "alone", "--unclean", "--confirm", "alone/0")
    assert (code, elected["leader"]) == (0, node), elected
    assert asyncio.run(read(cluster, "alone")) == []
