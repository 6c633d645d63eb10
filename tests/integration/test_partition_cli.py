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


def _truncated(offset: int, records: int, of_records: int) -> dict[str, Any]:
    return {"partition": 0, "offset": offset, "records": records, "of_records": of_records, "at_most": False}


def test_stream_delete_records_command_removes_the_records_before_an_offset(cluster: DevCluster) -> None:
    assert liftpy(cluster, "stream", "create", "old", "--subject", "old")[0] == 0

    async def publish() -> None:
        async with connect(cluster.nats_url) as client:
            for number in range(9):
                await client.publish("old", b"%d" % number)

    asyncio.run(publish())
    dry = {"stream": "old", "dry_run": True, "begins": [_truncated(6, 6, 9)]}
    assert liftpy(cluster, "stream", "delete-records", "old", "--before", "6", "--dry-run") == (0, dry)
    assert len(asyncio.run(read(cluster, "old"))) == 9
    assert liftpy(cluster, "stream", "delete-records", "old", "--before", "6", "--yes") == (0, dry | {"dry_run": False})
    until(lambda: [r.offset for r in asyncio.run(read(cluster, "old"))] == [6, 7, 8], "the log begins at 6")
    code, refused = liftpy(cluster, "stream", "delete-records", "old", "--before", "10", "--yes")
    assert (code != 0, "Offset 10 is outside 6..9" in refused) == (True, True), refused
    ago = liftpy(cluster, "stream", "delete-records", "old", "--before", "-1h", "--yes")
    assert ago == (0, {"stream": "old", "dry_run": False, "begins": [_truncated(6, 0, 3)]})
    code, all_of_it = liftpy(cluster, "stream", "delete-records", "old", "--before", "new", "--yes")
    assert (code, all_of_it["begins"]) == (0, [_truncated(9, 3, 3)])
    until(lambda: not asyncio.run(read(cluster, "old")), "nothing is left")


def test_partition_transfer_command_moves_the_leadership_to_the_given_node(cluster: DevCluster) -> None:
    assert liftpy(cluster, "stream", "create", "moves", "--subject", "moves", "--partitions", "3")[0] == 0
    first = state(cluster, "moves")
    other = first["replicas"][1]
    code, moved = liftpy(cluster, "partition", "transfer", "moves", "--node", other)
    assert (code, moved["leader"]) == (0, other)
    assert moved["leader_epoch"] > first["leader_epoch"]
    assert state(cluster, "moves")["leader"] == other
    code, back = liftpy(cluster, "partition", "elect-preferred")
    assert [(m["partition"], m["leader"]) for m in back["moved"]] == [(0, first["replicas"][0])]
    assert liftpy(cluster, "partition", "elect-preferred") == (0, {"moved": []})


@pytest.mark.parametrize(
    ("words", "exit_code", "text"),
    [
        (["transfer", "moves", "--node", "n9"], 2, "n9 has no replica of moves/0"),
        (["transfer", "moves", "7"], 1, "Its partitions are 0 to 2"),
        (["transfer", "nothing"], 1, "no stream"),
        (["elect", "moves"], 2, "already has a leader"),
        (["elect", "moves", "--confirm", "moves/0"], 2, "needs --unclean"),
    ],
)
def test_partition_commands_with_impossible_arguments_fail_with_the_reason(
    cluster: DevCluster, words: list[str], exit_code: int, text: str
) -> None:
    code, said = liftpy(cluster, "partition", *words)
    assert code == exit_code, said
    assert text in said


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
