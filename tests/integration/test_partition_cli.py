"""``liftpy partition`` against a cluster of its own: leaderships are moved, given back, and at last elected with a loss."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from liftpy.client import connect
from liftpy.core.base.partition import PartitionState, PartitionStatus
from liftpy.core.wire.batch import Record
from liftpy.errors import LogTruncatedError
from sidecar.dev.cluster import DevCluster
from tests import fork_server

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


def state(cluster: DevCluster, stream: str, partition: int = 0) -> dict[str, Any]:
    code, found = liftpy(cluster, "stream", "show", stream)
    assert code == 0, found
    return dict(found["partitions"][partition])


async def read(cluster: DevCluster, stream: str, **how: Any) -> list[Record]:
    """Everything that is committed, from the start or as said."""
    async with await connect(cluster.nats_url) as client:
        return [record async for record in client.consume(stream, until="end", **how)]


def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within 30 s"
        time.sleep(0.05)


def test_unclean_election_happens_only_on_command(cluster: DevCluster) -> None:
    assert liftpy(cluster, "stream", "create", "lossy", "--subject", "lossy", "--replicas", "2", "--min-isr", "1")[0] == 0
    partition = state(cluster, "lossy")
    leader, follower = partition["replicas"]
    cluster.nodes[follower].terminate()
    until(lambda: state(cluster, "lossy")["isr"] == [leader], "the follower leaves the ISR")
    publish = [*LIFTPY, "publish", "lossy", "-", "--nats", cluster.nats_url]
    fork_server.run(publish, input=b"1\n2\n3\n", check=True, timeout=60, capture_output=True)
    last_read = asyncio.run(read(cluster, "lossy"))[-1]
    assert last_read.offset == 2
    cluster.nodes[leader].kill()
    cluster.nodes[follower].start()
    cluster.nodes[follower].wait_ready()
    until(lambda: state(cluster, "lossy")["status"] == "OFFLINE", "the session of the leader ends")
    code, said = liftpy(cluster, "partition", "elect", "lossy")
    assert code == 2
    assert "live" in said
    code, elected = liftpy(cluster, "partition", "elect", "lossy", "--unclean", "--confirm", "lossy/0")
    assert (code, elected["leader"], elected["unclean_elected"]) == (0, follower, True), elected
    until(lambda: state(cluster, "lossy")["leader"] == follower, "the other one leads")
    with pytest.raises(LogTruncatedError, match="Records below 0 are unchanged"):
        asyncio.run(read(cluster, "lossy", start=3, after_epoch=last_read.leader_epoch))
    fork_server.run(publish, input=b"4\n5\n6\n7\n", check=True, timeout=60, capture_output=True)
    with pytest.raises(LogTruncatedError):  # also now that the new log is longer than the old one was
        asyncio.run(read(cluster, "lossy", start=3, after_epoch=last_read.leader_epoch))
    assert [record.value for record in asyncio.run(read(cluster, "lossy"))] == [b"4", b"5", b"6", b"7"]
    cluster.nodes[leader].start()
    cluster.nodes[leader].wait_ready()
    until(lambda: set(state(cluster, "lossy")["isr"]) == {leader, follower}, "both are in the ISR")


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
    until(lambda: asyncio.run(partition_of(cluster, "alone")).incomplete, "the cluster knows that the node has lost something")
    found = asyncio.run(partition_of(cluster, "alone"))
    assert (found.status, found.isr) == (PartitionStatus.OFFLINE, (node,))
    code, elected = liftpy(cluster, "partition", "elect", "alone", "--unclean", "--confirm", "alone/0")
    assert (code, elected["leader"]) == (0, node), elected
    assert asyncio.run(read(cluster, "alone")) == []
