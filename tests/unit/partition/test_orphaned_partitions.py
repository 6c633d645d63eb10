"""Test that a replica that moved away while its node was down is deleted only if a controller confirms it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import sidecar.partition.replica_manager as module
from liftpy.config import ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.wire._pb import cluster_pb2 as pb
from tests.unit.partition.test_partition_opening import Group


@pytest.mark.parametrize("allowed", [True, False])
async def test_orphaned_partition_directories_are_deleted_only_when_a_controller_confirms(allowed: bool) -> None:
    group = Group()
    for node in ("a", "b"):
        group.start_node(node)
    lists = [pb.ReplicaList(partition=number, replicas=[node]) for number, node in enumerate("ab")]
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", placement="manual", manual=lists, partitions=2))
    stream = group.fsm.image.streams["s"]
    asked: list[PartitionKey] = []
    gone: list[PartitionKey] = []

    async def confirms(key: PartitionKey) -> bool:
        asked.append(key)
        return allowed

    node: Any = SimpleNamespace(
        settings=SimpleNamespace(node_id="a", replication=ReplicationConfig()),
        fatal=pytest.fail,
        deletions=SimpleNamespace(is_allowed=confirms, close=lambda: None),
        folder=SimpleNamespace(delete_partition=gone.append),
        promises=SimpleNamespace(forget=lambda folder: None),
        pool=None,
    )
    partitions = module.Partitions(node)
    partitions.image_changed(ClusterImage(), group.fsm.image)
    partitions._workers[stream.key(0)] = SimpleNamespace()  # type: ignore[assignment]
    elsewhere = stream.key(1)
    folders = [f"s-{stream.uid}/{number}" for number in (0, 1, 7)]
    async with asyncio.timeout(30):
        await partitions.leave_behind([*folders, "s-another/1", "t-u/0"])
    assert asked == [elsewhere]
    assert gone == ([elsewhere] if allowed else [])
