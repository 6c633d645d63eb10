"""Partitions follow the image, also when it changes at the very moment at which a partition has been opened."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

import sidecar.partitions as module
from liftpy.cluster.fsm import ClusterFsm
from liftpy.cluster.image import ClusterImage
from liftpy.config import ReplicationConfig
from liftpy.wire._pb import cluster_pb2 as pb


class Group:
    """The metadata, changed by requests."""

    def __init__(self) -> None:
        self.fsm = ClusterFsm()
        self.count = 0

    def ask(self, **request: Any) -> ClusterImage:
        self.count += 1
        entry = pb.ControlRequest(operationId=self.count.to_bytes(16, "big"), timeNs=self.count, sender="test", **request)
        answer = pb.ControlResponse.FromString(self.fsm.apply(entry.SerializeToString(), self.count))
        assert answer.error == pb.ControlResponse.OK, answer
        return self.fsm.image

    def start_node(self, node: str) -> ClusterImage:
        held = self.fsm.image.nodes.get(node)
        previous = held.incarnation if held else 0
        return self.ask(registerNode=pb.RegisterNode(nodeId=node, previousIncarnation=previous, flushedAlways=True))


class Worker:
    """Remembers the LeaderEpochs that it was told; ``at_first`` is scheduled by the first one."""

    leads = False

    def __init__(self, key: Any, at_first: Any) -> None:
        self.key = key
        self.epochs: list[int] = []
        self._at_first = at_first

    def update(self, state: Any, live: Any) -> None:
        if not self.epochs:
            asyncio.get_running_loop().call_soon(self._at_first)
        self.epochs.append(state.leader_epoch)

    async def stop(self, *, delete: bool) -> bool:
        return True


async def test_a_change_between_the_last_look_and_the_end_of_the_opening_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    for node in ("a", "b"):
        group.start_node(node)
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=2))
    leader = group.fsm.image.streams["s"].partitions[0].leader
    follower = "b" if leader == "a" else "a"
    made: list[Worker] = []

    def leader_restarts() -> None:
        before = group.fsm.image
        partitions.image_changed(before, group.start_node(leader))

    async def open_worker(node: Any, key: Any, subject: str, config: Any) -> Worker:
        made.append(Worker(key, leader_restarts))
        return made[-1]

    monkeypatch.setattr(module, "open_worker", open_worker)
    settings = SimpleNamespace(node_id=follower, replication=ReplicationConfig())
    partitions = module.Partitions(SimpleNamespace(settings=settings, fatal=pytest.fail))  # type: ignore[arg-type]
    partitions.image_changed(ClusterImage(), group.fsm.image)
    async with asyncio.timeout(5):
        await partitions.settled()
        for _ in range(5):
            await asyncio.sleep(0)
    assert made[0].epochs[-1] == group.fsm.image.streams["s"].partitions[0].leader_epoch
    assert await partitions.stop()
