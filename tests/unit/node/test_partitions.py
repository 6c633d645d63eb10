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


class SlowWorker(Worker):
    """Its stop takes until ``may_end``; ``stops`` counts them."""

    def __init__(self, key: Any, may_end: asyncio.Event, *, clean: bool = True) -> None:
        super().__init__(key, lambda: None)
        self.may_end, self.clean, self.stops = may_end, clean, 0

    async def stop(self, *, delete: bool) -> bool:
        self.stops += 1
        await self.may_end.wait()
        return self.clean


async def _with_slow_worker(
    monkeypatch: pytest.MonkeyPatch, *, clean: bool = True
) -> tuple[Group, module.Partitions, list[SlowWorker], asyncio.Event]:
    group = Group()
    for node in ("a", "b"):
        group.start_node(node)
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=2, partitions=2))
    may_end = asyncio.Event()
    made: list[SlowWorker] = []

    async def open_worker(node: Any, key: Any, subject: str, config: Any) -> SlowWorker:
        made.append(SlowWorker(key, may_end, clean=clean))
        return made[-1]

    monkeypatch.setattr(module, "open_worker", open_worker)
    settings = SimpleNamespace(node_id="a", replication=ReplicationConfig())
    partitions = module.Partitions(SimpleNamespace(settings=settings, fatal=pytest.fail))  # type: ignore[arg-type]
    partitions.image_changed(ClusterImage(), group.fsm.image)
    await partitions.settled()
    return group, partitions, made, may_end


async def _turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_image_that_changes_during_a_stop_changes_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOPS_AT_ONCE", 1)  # so that the second worker is still there when the image changes
    group, partitions, workers, may_end = await _with_slow_worker(monkeypatch)
    async with asyncio.timeout(5):
        stopping = asyncio.create_task(partitions.stop())
        await _turns()
        before = group.fsm.image
        partitions.image_changed(before, group.start_node("b"))
        before = group.fsm.image
        group.ask(deleteStream=pb.DeleteStream(name="s"))
        partitions.image_changed(before, group.fsm.image)
        again = asyncio.create_task(partitions.stop())
        await _turns()
        may_end.set()
        assert await stopping
        assert await again
    assert [worker.stops for worker in workers] == [1, 1]
    assert await partitions.stop()


async def test_a_worker_that_is_being_stopped_already_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream was deleted, or moved away, just before the node's stop: whether it was closed in good order must still count."""
    group, partitions, workers, may_end = await _with_slow_worker(monkeypatch, clean=False)
    async with asyncio.timeout(5):
        before = group.fsm.image
        group.ask(deleteStream=pb.DeleteStream(name="s"))
        partitions.image_changed(before, group.fsm.image)
        await _turns()
        assert [worker.stops for worker in workers] == [1, 1]
        stopping = asyncio.create_task(partitions.stop())
        await _turns()
        assert not stopping.done()
        may_end.set()
        assert not await stopping
    assert [worker.stops for worker in workers] == [1, 1]
