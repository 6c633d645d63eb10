"""Test that partitions follow the metadata, also when it changes while a partition opens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import sidecar.partition.replica_manager as module
from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.metadata.image import ClusterImage
from liftpy.core.replication.lease import Lease, ReplicaLease
from liftpy.core.wire._pb import cluster_pb2 as pb
from liftpy.errors import StorageError
from sidecar.partition.deletions import Deletions
from sidecar.partition.metric_sums import NodeCounts
from sidecar.runtime import clock
from sidecar.runtime.timers import Timers
from tests.born import born_fsm, registration
from tests.unit.partition.shell_parts import process_tools
from tests.until import until

DECIDES = Deletions(SimpleNamespace(decides=True), "a")  # type: ignore[arg-type]


class Group:
    """The metadata, changed by requests."""

    def __init__(self) -> None:
        self.fsm = born_fsm()
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
        return self.ask(registerNode=registration(nodeId=node, previousIncarnation=previous, flushedAlways=True))


class Worker:
    """Remembers the LeaderEpochs that it was told; ``at_first`` is scheduled by the first one."""

    leads = has_flushed_all = False
    log = SimpleNamespace(log_end_offset=7)

    def __init__(self, key: Any, at_first: Any) -> None:
        self.key = key
        self.epochs: list[int] = []
        self._at_first = at_first

    def announce_change(self) -> None: ...

    def update(self, held: Any, live: Any) -> None:
        if not self.epochs:
            asyncio.get_running_loop().call_soon(self._at_first)
        self.epochs.append(held.state.leader_epoch)

    async def stop(self, *, delete: bool) -> bool:
        return True


def partitions_of(node_id: str, fatal: Callable[[Any], object] = pytest.fail) -> module.Partitions:
    tools: Any = SimpleNamespace(
        settings=SimpleNamespace(node_id=node_id, replication=ReplicationConfig()), **process_tools(fatal), deletions=DECIDES,
        lease=Lease(3_600 * NS_PER_S), timers=Timers(), pool=None, folder=SimpleNamespace(delete_partition=lambda key: None),
        promises=SimpleNamespace(forget=lambda folder: None),
    )  # fmt: skip
    return module.Partitions(tools, Mock(NodeCounts))


async def test_replica_manager_applies_a_metadata_change_that_arrives_while_a_partition_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
    partitions = partitions_of(follower)
    partitions.image_changed(ClusterImage(), group.fsm.image)
    async with asyncio.timeout(30):
        await partitions.wait_until_open()
        for _ in range(5):
            await asyncio.sleep(0)
    assert made[0].epochs[-1] == group.fsm.image.streams["s"].partitions[0].leader_epoch
    assert await partitions.stop()


async def test_replica_manager_reports_an_unexpected_error_while_a_partition_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group()
    group.start_node("a")
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x"))
    failures: list[BaseException] = []

    async def open_worker(node: Any, key: Any, subject: str, config: Any) -> Worker:
        raise ZeroDivisionError

    monkeypatch.setattr(module, "open_worker", open_worker)
    partitions = partitions_of("a", failures.append)
    partitions.image_changed(ClusterImage(), group.fsm.image)
    async with asyncio.timeout(30):
        while not failures:
            await asyncio.sleep(0)
    assert [type(error) for error in failures] == [ZeroDivisionError]
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
    partitions = partitions_of("a")
    partitions.image_changed(ClusterImage(), group.fsm.image)
    await partitions.wait_until_open()
    return group, partitions, made, may_end


async def _turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_replica_manager_ignores_a_metadata_change_during_its_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOPS_AT_ONCE", 1)  # so that the second worker is still there when the image changes
    group, partitions, workers, may_end = await _with_slow_worker(monkeypatch)
    async with asyncio.timeout(30):
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


async def test_replica_manager_stop_waits_for_a_partition_that_is_already_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream was deleted or moved right before the node's stop."""
    group, partitions, workers, may_end = await _with_slow_worker(monkeypatch, clean=False)
    async with asyncio.timeout(30):
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


class Leader(Worker):
    """Leads, and uses the lease of the node ``node`` as a replica does."""

    leads = True

    def __init__(self, node: Any, key: Any) -> None:
        super().__init__(key, lambda: None)
        self.lease = ReplicaLease(node.lease)

    def announce_change(self) -> None:
        self.lease.announce_change(clock.now_ns())

    def update(self, held: Any, live: Any) -> None:
        super().update(held, live)
        self.lease.record_change(self.lease.announced)

    def feed(self, event: Any) -> None: ...


async def _leading(monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[Group, module.Partitions, list[Leader], list[int]]:
    group = Group()
    group.start_node("a")
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=1, partitions=count))
    made: list[Leader] = []
    opening, most = [0], [0]

    async def open_worker(node: Any, key: Any, subject: str, config: Any) -> Leader:
        opening[0] += 1
        most[0] = max(most[0], opening[0])
        await asyncio.sleep(0)
        opening[0] -= 1
        made.append(Leader(node, key))
        return made[-1]

    monkeypatch.setattr(module, "open_worker", open_worker)
    partitions = partitions_of("a")
    partitions.image_changed(ClusterImage(), group.fsm.image)
    async with asyncio.timeout(20):
        await partitions.wait_until_open()
    return group, partitions, made, most


async def test_replica_manager_opens_logs_with_a_bounded_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(asyncio.all_tasks())
    _, partitions, made, most = await _leading(monkeypatch, 200)
    assert len(made) == len(partitions) == 200
    assert 1 < most[0] <= module._OPENED_AT_ONCE
    assert len(asyncio.all_tasks()) - before <= module._OPENED_AT_ONCE
    assert await partitions.stop()


async def test_replica_manager_applies_new_metadata_before_it_extends_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image of this heartbeat may name another leader [D22]."""
    group, partitions, made, _ = await _leading(monkeypatch, 20)
    partitions._changed._slice_s = 0.0  # one partition in each turn of the loop
    old = {worker.key: worker.epochs[-1] for worker in made}
    before = group.fsm.image
    partitions.image_changed(before, group.start_node("a"))  # new LeaderEpochs, in one change
    partitions.heartbeat_answered(clock.now_ns())
    seen = set()
    async with asyncio.timeout(30):
        while partitions._changed:
            seen |= {(worker.epochs[-1] > old[worker.key], worker.lease.is_current(clock.now_ns())) for worker in made}
            await asyncio.sleep(0)
    assert seen == {(False, False), (True, True)}, "no lease while a worker knows the old leadership only"
    assert all(worker.epochs[-1] > old[worker.key] and worker.lease.is_current(clock.now_ns()) for worker in made)
    assert await partitions.stop()


async def test_replica_manager_opens_other_partitions_when_one_log_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    monkeypatch.setattr(module, "_OPENED_AT_ONCE", 2)
    group = Group()
    group.start_node("a")
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=1, partitions=10))
    tries: list[int] = []
    heals = False

    async def open_worker(node: Any, key: Any, subject: str, config: Any) -> Leader:
        tries.append(key.partition)
        if key.partition < 5 and (not heals or tries.count(key.partition) < 3):
            raise StorageError("not yet")
        return Leader(node, key)

    monkeypatch.setattr(module, "open_worker", open_worker)
    partitions = partitions_of("a")
    partitions.image_changed(ClusterImage(), group.fsm.image)
    async with asyncio.timeout(30):
        await partitions.wait_until_open()
        assert len(partitions) == 5
        assert len(partitions.failed) == 5
        heals = True
        while len(partitions) < 10:
            await asyncio.sleep(0.005)
    assert partitions.failed == {}
    assert await partitions.stop()


@pytest.mark.parametrize("seed", range(8))
async def test_replica_manager_opens_waiting_partitions_despite_metadata_changes(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Each change used to lose one of the places of opening partitions, until the node opened none."""
    rng = random.Random(seed)
    monkeypatch.setattr(module, "_OPENED_AT_ONCE", 2)
    group = Group()
    group.start_node("a")
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", replicationFactor=1, partitions=60))
    opened: list[int] = []

    async def open_worker(node: Any, key: Any, subject: str, config: Any) -> Leader:
        for _ in range(rng.randrange(1, 40)):
            await asyncio.sleep(0)
        opened.append(key.partition)
        return Leader(node, key)

    monkeypatch.setattr(module, "open_worker", open_worker)
    partitions = partitions_of("a")
    partitions._changed._slice_s = (
        0.0  # one partition in each turn of the loop: a place may get free while others wait for their turn
    )
    partitions.image_changed(ClusterImage(), group.fsm.image)
    keys = [group.fsm.image.streams["s"].key(number) for number in range(60)]
    for turn in range(3000):
        if turn < 200:
            partitions._changed.add(rng.sample(keys, 20))  # as a change of theirs in the image does
        await asyncio.sleep(0)
    assert sorted(opened) == list(range(60))
    async with asyncio.timeout(30):
        await partitions.wait_until_open()
    assert await partitions.stop()


async def test_replica_manager_stop_cancels_partitions_waiting_to_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_OPENED_AT_ONCE", 1)
    group = Group()
    group.start_node("a")
    group.ask(createStream=pb.CreateStream(name="s", subject="s.x", partitions=3))
    opened: list[Any] = []

    async def open_worker(node: Any, key: Any, subject: str, config: Any, *_: Any) -> Worker:
        opened.append(key)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(module, "open_worker", open_worker)
    partitions = partitions_of("a")
    partitions.image_changed(ClusterImage(), group.fsm.image)
    await until(lambda: opened)
    async with asyncio.timeout(30):
        assert await partitions.stop()
        await partitions.wait_until_open()
    assert len(opened) == 1
