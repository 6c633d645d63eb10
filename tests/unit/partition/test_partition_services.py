"""Test which service messages a partition ignores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from liftpy.core.wire import frames
from liftpy.core.wire._pb import service_pb2
from tests.unit.services.test_service_endpoint import World, hello


def test_partition_services_ignore_messages_of_other_partitions_and_unknown_nodes() -> None:
    world = World()
    world.say(hello())
    world.say(frames.encode(service_pb2.ServiceAck(service="bank", stream="s", partition=7)))
    world.say(frames.encode(service_pb2.SnapshotRequest(service="bank", stream="s", partition=7)))
    assert world.counters == {}
    heard: list[Any] = []
    world.services._wellness = SimpleNamespace(record_states=lambda *told: heard.append(told))  # type: ignore[assignment]
    told = [service_pb2.ServiceReport.State(service="bank", position=4)]
    for node, uid in (("n2", "u0"), ("n1", "u1"), ("n9", "u1"), ("n2", "u1")):
        world.services.record_states(service_pb2.ServiceReport(node=node, streamUid=uid, services=told))
    assert [node for node, *_ in heard] == ["n2"]
