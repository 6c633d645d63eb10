"""Test the record feeder over a log in memory: stops, the high watermark, and the return to a snapshot."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from liftpy.core.services.bad_records import Unit
from liftpy.errors import LogTruncatedError, StorageError
from liftpy.service import Role, ServiceFailedError, ServiceMachine, Snapshot
from liftpy.service.node_orders import NodeOrders
from liftpy.service.record_feeder import Feeder
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshots import SnapshotKeeper, SnapshotStore, StoredSnapshot
from tests.unit.services.feeder_node import EVERY, WHO, EndlessSearch, FakeLog, Node, Sum
from tests.until import until


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
async def node(log: FakeLog, tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(log, tmp_path)
    yield made
    await made.close()


async def test_service_record_feeder_stops_at_the_stop_position_and_resumes_when_the_stop_is_removed(node: Node) -> None:
    node.log.append(30)
    await node.feeder.restart(0)
    node.feeder.stop_at(12, node.acknowledge)
    node.task = asyncio.create_task(node.feeder.run())
    await node.at(12)
    assert node.stops == 1
    node.log.append(5)
    await asyncio.sleep(0.03)
    assert node.machine.position == 12
    node.feeder.stop_at(None)
    await node.at(35)
    assert node.services[0].values == [f"v{n}" for n in range(35)]
    await node.stored(10, 20, 30)


async def test_service_record_feeder_over_compacted_offsets_ends_at_the_stop_position(node: Node) -> None:
    node.log.append(30)
    node.log.compacted = set(range(5, 29))
    await node.feeder.restart(0)
    node.feeder.stop_at(12, node.acknowledge)
    node.task = asyncio.create_task(node.feeder.run())
    await node.at(12)
    assert node.stops == 1
    node.feeder.stop_at(None)
    await node.at(30)
    assert node.services[0].values == ["v0", "v1", "v2", "v3", "v4", "v29"]


async def test_service_record_feeder_after_a_log_truncation_rewinds_to_a_snapshot_before_the_truncation(node: Node) -> None:
    node.log.append(25)
    await node.start()
    await node.at(25)
    del node.log.batches[17:]  # an unclean election: another log from 17 on
    node.log.append(20, epoch=5, prefix="w")
    node.become(Role.FOLLOWER, 5)
    await node.at(37)
    assert len(node.services) > 1
    assert node.services[-1].values == [f"v{n}" for n in range(17)] + [f"w{n}" for n in range(17, 37)]
    await node.stored(10, 20, 30)
    assert [json.loads(s.state)[-1] for s in [node.store.newest()] if s] == ["w29"]


async def test_service_record_feeder_with_a_state_past_the_log_end_of_the_leader_rewinds(node: Node) -> None:
    node.log.append(25)
    await node.start()
    await node.at(25)
    del node.log.batches[15:]
    node.become(Role.LEADER, 5)
    node.feeder.cut_at(15)
    await node.at(15)
    assert node.services[-1].values == [f"v{n}" for n in range(15)]
    await node.stored(10)


async def test_service_record_feeder_ask_again_cancels_a_pending_fetch_and_fetches_again(node: Node) -> None:
    node.log.deaf = True
    node.log.append(5)
    await node.start()
    await until(lambda: node.log.fetches)
    node.log.deaf = False
    await asyncio.sleep(0)
    assert node.machine.position == 0
    node.feeder.ask_again()
    await node.at(5)


@pytest.mark.parametrize("end_offset", [17, 30])
async def test_service_record_feeder_rewinds_when_the_reader_reports_a_truncation(node: Node, end_offset: int) -> None:
    """The node may report the new epoch later. A truncation behind the state changes nothing."""
    node.log.append(25)
    await node.start()
    await node.at(25)
    if end_offset < 25:
        del node.log.batches[end_offset:]
    node.log.truncated = LogTruncatedError("cut", end_offset)
    node.log.append(1, epoch=5, prefix="w")
    await until(lambda: end_offset >= 25 or node.machine.position <= end_offset)
    node.log.truncated = None
    node.log.append(3, epoch=5, prefix="w")
    await node.at(len(node.log.batches))
    assert (len(node.services) > 1) == (end_offset < 25)
    kept = min(end_offset, 25)
    assert node.services[-1].values == [f"v{n}" for n in range(kept)] + [f"w{n}" for n in range(kept, kept + 4)]


async def test_service_record_feeder_with_a_new_epoch_of_the_same_log_keeps_its_service_instance(node: Node) -> None:
    node.log.append(25)
    await node.start()
    await node.at(25)
    for epoch in range(2, 6):
        node.become(Role.LEADER if epoch % 2 else Role.FOLLOWER, epoch)
        node.log.append(3, epoch=epoch)
        await node.at(25 + 3 * (epoch - 1))
    assert len(node.services) == 1


async def test_service_record_feeder_of_the_leader_waits_while_the_outbox_is_full(log: FakeLog, tmp_path: Path) -> None:
    node = Node(log, tmp_path, max_records=8)
    node.role = Role.LEADER
    log.append(100)
    await node.start()
    await until(lambda: node.outbox.full)
    held_at = node.machine.position
    await asyncio.sleep(0.03)
    assert node.machine.position == held_at < 100  # lag, and bounded memory
    async with asyncio.timeout(30):
        for written in itertools.count(1):
            if node.machine.position == 100:
                break
            node.outbox.outputs_committed(min(written, node.outbox.output_count))
            await asyncio.sleep(0.001)
    await node.close()


async def test_service_record_feeder_of_a_promoted_follower_produces_dropped_outputs_again(
    log: FakeLog, tmp_path: Path
) -> None:
    node = Node(log, tmp_path, max_records=5)
    log.append(58)
    await node.start()
    await node.at(58)
    assert node.outbox.oldest_number == 53
    node.outbox.outputs_committed(33)  # the LEADER before has written so many
    node.become(Role.LEADER, 2)
    await until(lambda: not node.outbox.must_rewind and len(node.outbox.read(33, 3)) == 3)
    assert [o.value for o in node.outbox.read(33, 3)] == [b"v33", b"v34", b"v35"]
    assert len(node.services) == 2
    await node.close()


async def test_service_record_feeder_that_is_no_leader_any_more_ends_its_search_for_a_snapshot(
    log: FakeLog, tmp_path: Path
) -> None:
    search = EndlessSearch()
    node = Node(log, tmp_path, fetcher=search, max_records=5)
    log.append(58)
    await node.start()
    await node.at(58)
    log.log_start = 20
    node.outbox.outputs_committed(3)  # no snapshot above the log start has so few outputs
    node.become(Role.LEADER, 2)
    await until(lambda: search.is_searching)
    node.become(Role.FOLLOWER, 3)
    await until(lambda: len(node.services) == 2)
    await node.at(58)
    assert node.task is not None
    assert not node.task.done()
    await node.close()


async def test_service_record_feeder_that_produces_outputs_again_skips_the_same_records(log: FakeLog, tmp_path: Path) -> None:
    node = Node(log, tmp_path, max_records=5)
    await node.start()
    node.machine.skip(Unit(35))  # as a snapshot says
    log.append(58)
    await node.at(58)
    node.outbox.outputs_committed(33)
    node.become(Role.LEADER, 2)
    await until(lambda: not node.outbox.must_rewind and len(node.outbox.read(33, 3)) == 3)
    assert [o.value for o in node.outbox.read(33, 3)] == [b"v33", b"v34", b"v36"]
    await node.close()


async def test_service_record_feeder_after_a_diverged_output_restores_an_earlier_snapshot(log: FakeLog, tmp_path: Path) -> None:
    """Later snapshots are discarded, too. The earlier one leads to the right state."""
    node = Node(log, tmp_path, kept=5)
    log.append(25)
    await node.start()
    await node.at(25)
    await node.stored(10, 20)
    await node.close()
    again = Node(log, tmp_path, kept=5)
    await again.start()
    assert again.machine.position == 20
    log.append(10)
    await again.at(35)
    await again.stored(10, 20, 30)
    begun: list[int] = []
    told = again.machine_started
    again.machine_started = lambda machine, snapshot: (begun.append(machine.position), told(machine, snapshot))[1]
    again.feeder.disproven()
    await until(lambda: begun)
    await again.at(35)
    await again.stored(10, 20, 30)
    assert begun == [10]
    assert sorted(path.stem.lstrip("0") for path in again.store.folder.glob("*.diverged")) == ["20", "30"]
    await again.close()


async def test_service_record_feeder_after_a_divergence_restores_only_compared_snapshots(log: FakeLog, tmp_path: Path) -> None:
    node = Node(log, tmp_path)
    log.append(25)
    await node.start()
    await node.at(25)
    await node.stored(10, 20)
    node.outbox.compared_end = 10
    node.keeper.quarantine_diverged()
    assert node.store.positions() == [10]
    await node.close()


async def test_service_record_feeder_applies_records_if_a_snapshot_cannot_be_written(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = node.store.save

    def full(snapshot: Snapshot, compared_end: int) -> StoredSnapshot:
        if snapshot.position == 10:
            raise StorageError("no space")
        return real(snapshot, compared_end)

    monkeypatch.setattr(node.store, "save", full)
    node.log.append(15)
    await node.start()
    node.outbox.compared_end = 100
    await node.at(15)
    assert "STORAGE" in node.keeper.problem
    assert node.keeper.retain_from() == 0
    node.log.append(10)
    await node.stored(20)
    await until(lambda: not node.keeper.problem)
    await node.keeper.retain()
    assert node.keeper.retain_from() == 20


# ---- snapshots, not on all nodes at once -----------------------------------------------------------------------------------
async def test_service_record_feeder_waiting_for_its_snapshot_turn_rewinds_after_a_truncation(
    log: FakeLog, tmp_path: Path
) -> None:
    node = Node(log, tmp_path)
    log.append(8)
    await node.start()
    await node.at(8)
    node.keeper.turn = 1
    node.keeper.note_blocked_time(1000.0)
    log.append(4)
    async with asyncio.timeout(30):
        while log.highest_read < 11:
            await asyncio.sleep(0.001)
    node.feeder.stop_at(None)
    for _ in range(5):
        await asyncio.sleep(0.001)
    assert node.machine.position == 8, "it waits on, and the event loop runs"
    del log.batches[6:]
    node.feeder.cut_at(6)
    await node.at(6)
    assert len(node.services[0].values) == 8, "nothing that was cut was applied"
    log.append(2)
    await node.at(8)
    log.append(4)
    node.feeder.stop_at(11)  # a promotion waits
    await node.at(11)
    await node.stored(10)
    await node.close()


@pytest.mark.parametrize("made", [7, lambda: 7, lambda: 1 // 0])
async def test_service_record_feeder_with_a_snapshot_that_is_not_bytes_ends_the_service(
    node: Node, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sum, "take_snapshot", lambda self: made)
    node.log.append(12)
    await node.start()
    assert node.task is not None
    with pytest.raises(ServiceFailedError, match="take_snapshot returned"):
        async with asyncio.timeout(30):
            await node.task


class SlowToStart(Sum):
    """A service whose ``on_start`` needs a running event loop."""

    starts_in_thread, emits = True, False
    loop_went_on = threading.Event()

    def on_start(self, snapshot: bytes | None) -> None:
        super().on_start(snapshot)
        assert self.loop_went_on.wait(20), "the event loop stands still while the service starts"


async def test_service_record_feeder_with_a_slow_service_start_does_not_block_the_event_loop(
    log: FakeLog, tmp_path: Path
) -> None:
    settings = ServiceSettings("sum", "in", "n1", tmp_path, snapshot_interval_records=EVERY, step_s=0.001)
    keeper = SnapshotKeeper(SnapshotStore(tmp_path, WHO, kept=2, max_bytes=1 << 20), settings, None)
    reader: Any = log
    started: list[ServiceMachine] = []
    decisions: Any = None
    feeder = Feeder(
        reader=reader,
        settings=settings,
        keeper=keeper,
        factory=SlowToStart,
        emitter=None,
        orders=NodeOrders(is_same_process=True),
        decisions=decisions,
        started=lambda machine, _: started.append(machine),
    )
    restarting = asyncio.create_task(feeder.restart(0))
    asyncio.get_running_loop().call_later(0.05, SlowToStart.loop_went_on.set)
    await restarting
    assert [machine.position for machine in started] == [0]


async def test_service_record_feeder_truncation_at_a_snapshot_position_keeps_the_snapshot(node: Node) -> None:
    node.log.append(25)
    await node.start()
    await node.at(25)
    await node.stored(10, 20)
    del node.log.batches[20:]
    node.feeder.cut_at(20)
    await node.at(20)
    assert node.store.positions() == [10, 20]
    assert (node.outbox.known, node.outbox.output_count) == (False, 20), "what was written is read and compared again"
