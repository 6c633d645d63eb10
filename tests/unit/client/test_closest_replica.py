"""Test a reader near a rack: its choice of a replica, the change after a failure, and the return."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.client import closest_replica as nearest_module
from liftpy.client import metadata_requests as requests_module
from liftpy.client.closest_replica import AWAY_S, CHECK_EVERY_S, ReplicaSelector
from liftpy.client.consumer import Consumer, ReadOptions
from liftpy.core.wire._pb import cluster_pb2
from liftpy.errors import ConfigError, UnavailableError
from liftpy.nats.transport import RequestTimeoutError
from tests.unit.client.test_uncommitted_reads_and_events import Log, taken


class Metadata:
    """``isr`` of the partition; ``racks``: rack -> nodes."""

    def __init__(self, isr: tuple[str, ...] = ("n1", "n2", "n3", "n4"), **racks: set[str]) -> None:
        self.isr, self.racks = isr, racks or {"a": {"n2", "n3", "n9"}}
        self.here: set[str] = set()
        self.looks = 0
        self.fails = False
        self.nearest = ReplicaSelector("a", self.partition, self.nodes_near)

    async def partition(self) -> Any:
        self.looks += 1
        if self.fails:
            raise UnavailableError("no metadata leader")
        return SimpleNamespace(isr=self.isr)

    async def nodes_near(self, rack: str) -> tuple[set[str], set[str]]:
        return self.here, self.racks.get(rack, set())


class Time:
    now = 1000.0

    def time(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
async def time(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace the loop time of the module. Timeouts still use the real time."""
    made = Time()
    proxy = SimpleNamespace(get_running_loop=lambda: made, wait_for=asyncio.wait_for)
    monkeypatch.setattr(nearest_module, "asyncio", proxy)
    return made


async def test_nearest_replica_is_an_in_sync_replica_in_the_rack(time: Time) -> None:
    metadata = Metadata()
    found = {await metadata.nearest.instead_of("n1") for _ in range(60)}
    assert found == {"n2", "n3"}
    assert await metadata.nearest.instead_of("n3") == "n3"
    assert await metadata.nearest.instead_of("") in found
    assert metadata.looks == 1


async def test_nearest_replica_that_failed_is_skipped_until_a_delay_has_passed(time: Time) -> None:
    metadata = Metadata()
    await metadata.nearest.instead_of("")
    metadata.nearest.note_failure("n3")
    metadata.nearest.note_failure("n7")
    assert {await metadata.nearest.instead_of("n3") for _ in range(20)} == {"n2"}
    metadata.nearest.note_failure("n2")
    metadata.isr = ("n1", "n3")
    assert [await metadata.nearest.instead_of(node) for node in ("n1", "")] == ["n1", ""]
    assert metadata.looks == 1
    time.now += CHECK_EVERY_S
    assert await metadata.nearest.instead_of("n1") in ("n2", "n3")  # both have had their rest: nothing to look up
    metadata.nearest.note_failure("n2")
    metadata.nearest.note_failure("n3")
    assert await metadata.nearest.instead_of("n1") == "n1"
    assert metadata.looks == 2
    time.now += AWAY_S
    assert {await metadata.nearest.instead_of("n1") for _ in range(20)} == {"n3"}


async def test_nearest_replica_on_the_same_host_is_preferred_to_the_rack(time: Time) -> None:
    metadata = Metadata()
    metadata.here = {"n1", "n3", "n7"}  # of these n3 is in the rack too, and n7 is not in sync
    assert {await metadata.nearest.instead_of("n2") for _ in range(40)} == {"n1", "n3"}
    metadata.nearest.note_failure("n1")
    assert {await metadata.nearest.instead_of("n2") for _ in range(20)} == {"n3"}
    metadata.nearest.note_failure("n3")
    assert await metadata.nearest.instead_of("n1") == "n2", "the rack's other one"
    time.now += AWAY_S
    assert await metadata.nearest.instead_of("n2") in ("n1", "n3")


async def test_nearest_replica_is_looked_up_again_after_a_delay(time: Time) -> None:
    metadata = Metadata(b={"n1"})
    for _ in range(5):
        assert await metadata.nearest.instead_of("n4") == "n4"
    assert metadata.looks == 1
    metadata.racks["a"] = {"n2"}
    time.now += CHECK_EVERY_S
    metadata.fails = True
    assert await metadata.nearest.instead_of("n4") == "n4"
    metadata.fails = False
    assert (await metadata.nearest.instead_of("n4"), metadata.looks) == ("n4", 2)
    time.now += CHECK_EVERY_S
    assert (await metadata.nearest.instead_of("n4"), metadata.looks) == ("n2", 3)


async def test_partition_reader_near_a_rack_reads_from_another_rack_only_after_a_failure(time: Time) -> None:
    log = Log(ReadOptions(near="a"), Metadata(a={"n3"}).nearest)
    consumer = Consumer(log.reader, "earliest", "end")
    await consumer.begin()
    assert await taken(consumer, 4) == [0, 1, 2, 3]
    assert [node for node, request in log.asked if not request.boundsOnly] == ["n3"]
    log.asked.clear()
    log.high_watermark = 7
    consumer = Consumer(log.reader, 4, "end")
    await consumer.begin()
    log.failing = [RequestTimeoutError("no")]
    assert await taken(consumer, 4) == [4, 5, 6, 7]
    assert [node for node, request in log.asked if not request.boundsOnly] == ["n3", "n2"]
    time.now += AWAY_S
    consumer = Consumer(log.reader, 6, "end")
    assert await taken(consumer, 2) == [6, 7]
    assert log.asked[-1][0] == "n3"


@pytest.mark.parametrize("given", [{"node": "n1"}, {"isolation": "uncommitted"}])
def test_read_options_near_with_another_replica_choice_raise_config_error(given: Any) -> None:
    with pytest.raises(ConfigError, match="Remove one of them"):
        ReadOptions(near="a", **given)
    with pytest.raises(ConfigError, match=f"nearest cannot be combined with .*{next(iter(given))}"):
        ReadOptions(nearest=True, **given)


async def test_admin_nodes_near_stops_requesting_pages_after_the_last_page_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "this_host", lambda: "h/1")
    asked: list[cluster_pb2.DescribeCluster] = []

    async def read(request: cluster_pb2.ControlRequest) -> cluster_pb2.ControlResponse:
        asked.append(cluster_pb2.DescribeCluster.FromString(request.describeCluster.SerializeToString()))
        answer = cluster_pb2.ControlResponse()
        image, number = answer.cluster.image, len(asked)
        answer.cluster.more = True
        image.nodes.add(nodeId=f"n{number}", rack="a" if number != 2 else "b", host="h/1" if number > 1 else "h/2")
        if number == 3:
            image.streams.add(name="s", uid="u")
        return answer

    requests: Any = requests_module.MetadataRequests.__new__(requests_module.MetadataRequests)
    requests.read = read
    assert await requests.nodes_near("a") == ({"n2", "n3"}, {"n1", "n3"})
    assert [(question.afterNode, question.afterStream) for question in asked] == [("", ""), ("n1", ""), ("n2", "")]
    assert {question.maxBytes for question in asked} == {64 * 1024}
