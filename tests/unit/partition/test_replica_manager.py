"""Test all partitions of a node: events, openings, ends and leaders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from liftpy.config import NS_PER_S, ReplicationConfig
from liftpy.core.base.ids import PartitionKey
from liftpy.core.replication import events
from liftpy.core.replication.events import LeaseChanged
from liftpy.core.replication.lease import Lease
from liftpy.core.wire._pb import replication_pb2
from liftpy.errors import StorageError
from sidecar.partition import replica_manager as partitions_module
from sidecar.partition.leadership import LeadershipTransfers
from sidecar.partition.metric_sums import NodeCounts
from sidecar.partition.recovery import RecoveredLogs
from sidecar.runtime import clock
from sidecar.runtime.timers import Timers
from tests.unit.partition.shell_parts import KEY
from tests.until import until


class RecordingWorker:
    """A worker that remembers what it was fed and how it ended."""

    def __init__(self, key: PartitionKey, *, leads: bool = False, clean: bool = True) -> None:
        self.key, self.leads, self.clean = key, leads, clean
        self.events: list[Any] = []
        self.ends: list[bool] = []
        self.leader_epoch, self.asked = 4, []
        self.is_in_sync = True
        self.storage_failed = self.has_flushed_all = False
        self.ingest = SimpleNamespace(
            leave=lambda: self.asked.append("leave"), resubscribe=lambda: self.asked.append("back"), is_idle=True
        )
        self.replica = SimpleNamespace(serves=lambda epoch, now_ns: epoch == 4)
        self.feed = self.events.append
        self.services = object()
        self.log = SimpleNamespace(log_end_offset=7)
        self.transfers: Any = None

    def prepare_transfer(self, leader_epoch: int, done: Callable[[], None]) -> None:
        if self.leads and leader_epoch == self.leader_epoch:
            self.transfers.begin(self, done)
        else:
            done()

    def open_services(self) -> object:
        return self.services

    def announce_change(self) -> None:
        self.events.append("announced")

    def update(self, held: Any, live: Any) -> None:
        self.events.append("told")

    async def stop(self, *, delete: bool) -> bool:
        self.ends.append(delete)
        return self.clean


def partitions(*workers: RecordingWorker, allowed: bool = True, links: Any = None) -> Any:
    async def may_delete(key: PartitionKey) -> bool:
        return allowed

    links = links or SimpleNamespace(wait_until_processed=lambda timeout_s: asyncio.sleep(0))
    transfers = LeadershipTransfers(links)
    deletions = SimpleNamespace(is_allowed=may_delete, close=lambda: None)
    settings = SimpleNamespace(node_id="n1", replication=ReplicationConfig())
    previous, recovered = SimpleNamespace(clean_stop=True), RecoveredLogs()
    made: Any = partitions_module.Partitions(
        SimpleNamespace(
            settings=settings, process=SimpleNamespace(fatal=pytest.fail), deletions=deletions, lease=Lease(NS_PER_S),
            timers=Timers(), transfers=transfers, previous=previous, recovered=recovered,
        ),  # type: ignore[arg-type]
        Mock(NodeCounts),
    )  # fmt: skip
    made.previous, made.recovered = previous, recovered
    made.transfers, made.links = transfers, links
    for one in workers:
        one.transfers = transfers
        made._workers[one.key] = made._by_name[one.key.stream, one.key.partition] = one
    return made


async def test_replica_manager_delivers_an_event_only_to_a_partition_with_its_stream_uid() -> None:
    one = RecordingWorker(KEY)
    node = partitions(one)
    for uid in ("u1", "", "u2"):
        node.deliver("orders", 3, uid, f"event {uid}")
    node.deliver("orders", 4, "", "another partition's")
    assert one.events == ["event u1", "event "]
    assert (node.services_of("orders", 3), node.services_of("orders", 4)) == (one.services, None)


async def test_replica_manager_confirms_a_leader_only_for_its_stream_uid_and_epoch() -> None:
    node = partitions(RecordingWorker(KEY))
    asked = {"stream": "orders", "streamUid": "u1", "partition": 3, "leaderEpoch": 4}
    assert node.serves(replication_pb2.LeaderQuestion(**asked))
    for wrong in ({"streamUid": "u2"}, {"partition": 2}, {"leaderEpoch": 5}, {"stream": "other"}):
        assert not node.serves(replication_pb2.LeaderQuestion(**(asked | wrong)))


@pytest.mark.parametrize("clean", [(True, True), (False, True), (True, False)])
async def test_replica_manager_stop_is_unclean_if_any_partition_closed_unclean(clean: tuple[bool, bool]) -> None:
    node = partitions(*(RecordingWorker(PartitionKey("orders", "u1", n), clean=c) for n, c in enumerate(clean)))
    assert await node.stop() is all(clean)
    assert node.all_flushed is all(clean)


@pytest.mark.parametrize("has_unread_log", [False, True])
async def test_replica_manager_stop_after_a_full_disk_is_unclean_and_reports_flushed_logs(has_unread_log: bool) -> None:
    one, two = RecordingWorker(KEY, clean=False), RecordingWorker(PartitionKey("orders", "u1", 4))
    one.has_flushed_all = True
    node = partitions(one, two)
    node.previous.clean_stop = False
    if has_unread_log:
        node.recovered.unrecovered.add(Path("orders-u1/9"))
    assert not await node.stop()
    assert node.all_flushed is not has_unread_log


@pytest.mark.parametrize("unclean_elected", [True, False])
@pytest.mark.parametrize("in_sync", [True, False])
async def test_replica_manager_reports_a_replica_as_complete_only_in_sync_and_without_an_unclean_election(
    unclean_elected: bool, in_sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = RecordingWorker(KEY)
    one.is_in_sync = in_sync
    node = partitions(one)
    found = (SimpleNamespace(), SimpleNamespace(unclean_elected=unclean_elected))
    monkeypatch.setattr(node, "_find_in_image", lambda key: found)
    assert node.has_everything(one) is (in_sync and not unclean_elected)
    monkeypatch.setattr(node, "_find_in_image", lambda key: None)
    assert not node.has_everything(one)


async def test_replica_manager_extends_the_lease_without_an_event_while_the_lease_is_current() -> None:
    one = RecordingWorker(KEY, leads=True)
    node = partitions(one)
    node._leading[KEY] = one
    now_ns = clock.now_ns()
    node.heartbeat_answered(now_ns)
    assert one.events == [LeaseChanged()], "it had none"
    node.heartbeat_answered(now_ns + 1, 3_600 * NS_PER_S)
    assert node._node.lease.until_ns(now_ns) == now_ns + 1 + 3_600 * NS_PER_S, "as long as the answer says"
    assert one.events == [LeaseChanged()], "nothing waits for the lease"


async def test_replica_manager_tells_only_leaders_that_the_lease_is_valid_again() -> None:
    leader, follower = RecordingWorker(KEY, leads=True), RecordingWorker(PartitionKey("orders", "u1", 4))
    node = partitions(leader, follower)
    node._leading[KEY] = leader
    for count in (1, 2):
        node.heartbeat_answered(clock.now_ns() - NS_PER_S + 1)
        assert leader.events == [LeaseChanged()] * count, "each lease has ended at once"
    assert follower.events == []


async def test_replica_manager_tells_the_leaders_when_the_lease_ends() -> None:
    leader, follower = RecordingWorker(KEY, leads=True), RecordingWorker(PartitionKey("orders", "u1", 4))
    node = partitions(leader, follower)
    node._leading[KEY] = leader
    node.heartbeat_answered(clock.now_ns(), NS_PER_S // 100)
    await until(lambda: len(leader.events) == 2)
    assert not node._node.lease.is_current(clock.now_ns())
    assert (leader.events, follower.events) == ([LeaseChanged()] * 2, [])


async def start(node: Any) -> bool:
    """Open the log of a partition. Return whether that succeeded."""
    stream = SimpleNamespace(subject="shop", config=None)
    return bool(await node._start(KEY, stream, SimpleNamespace(joining="")))


@pytest.mark.parametrize("is_up", [True, False])
async def test_replica_manager_reports_a_lost_data_connection_to_a_newly_opened_partition(
    is_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RecordingWorker(KEY)

    async def opened(*_: Any) -> RecordingWorker:
        return made

    monkeypatch.setattr(partitions_module, "open_worker", opened)
    node = partitions()
    node.data_path_changed(is_up)
    assert await start(node)
    assert made.events == ([] if is_up else [events.DataPathChanged(is_up=False)])


async def test_replica_manager_retries_to_open_a_partition_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "not now"

    async def opened(*_: Any) -> RecordingWorker:
        raise StorageError(reason)

    monkeypatch.setattr(partitions_module, "open_worker", opened)
    monkeypatch.setattr(partitions_module, "_RETRY_S", 0.01)
    node = partitions()
    seen: list[PartitionKey] = []
    node._changed._work = seen.append
    assert not await start(node)
    assert "not now" in node.failed[KEY]
    await until(lambda: seen == [KEY])
    assert node._retries == {}
    assert not await start(node)
    assert caplog.text.count("log not opened") == 1, "each new reason is logged once"
    reason = "a full disk"
    assert not await start(node)
    assert caplog.text.count("log not opened") == 2
    assert reason in node.failed[KEY]
    for clean_stop in (False, True):
        node.previous.clean_stop = clean_stop
        assert await node.stop() is clean_stop, "the next start must write again what this one could not"


@pytest.mark.parametrize("clean_stop", [False, True])
async def test_replica_manager_stop_before_the_opening_of_an_unrecovered_log_is_not_clean(clean_stop: bool) -> None:
    """The next start must write the data of the log again [S1]."""
    node = partitions()
    node.recovered.unrecovered.add(Path("orders-u1/3"))
    node.previous.clean_stop = clean_stop
    assert await node.stop() is clean_stop
