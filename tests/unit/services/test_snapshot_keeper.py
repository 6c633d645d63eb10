"""Test when a service stores a snapshot, and from which offset the log is retained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from liftpy.core.services.bad_records import Unit
from liftpy.core.wire.batch import Record
from liftpy.service import Identity, Outbox, Service, ServiceMachine
from liftpy.service.settings import ServiceSettings
from liftpy.service.snapshots import SnapshotKeeper, SnapshotStore

WHO = Identity("count", "in", "u1", 0)


class Count(Service):
    def on_start(self, snapshot: bytes | None) -> None:
        self.count = int(snapshot or 0)

    def on_record(self, record: Record) -> None:
        self.count += 1
        self.emit(b"x")
        if record.value == b"bad":
            raise ValueError(record.value)

    def take_snapshot(self) -> bytes:
        return b"%d" % self.count


class World:
    """A snapshot keeper with its service machine."""

    def __init__(self, data: Path, **settings: Any) -> None:
        given = ServiceSettings("count", "in", "n1", data, **settings)
        self.store = SnapshotStore(data, WHO, kept=3, max_bytes=1 << 20)
        self.outbox = Outbox("u1/0")
        self.keeper = SnapshotKeeper(self.store, given, self.outbox)
        self.machine = ServiceMachine(Count(), WHO, snapshot_interval_records=1000, outbox=self.outbox)
        self.machine.start(None)

    async def retain_from(self) -> int:
        await self.keeper.retain()
        return self.keeper.retain_from()

    async def take_snapshots(self, count: int) -> None:
        """Take a snapshot after each five records."""
        for _ in range(count):
            self.apply(5)
            await self.keeper.keep(self.machine)

    def apply(self, count: int) -> None:
        start = self.machine.position
        self.machine.apply([Record(start + n, 0, None, b"v", (), "", None, 1) for n in range(count)])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_service_snapshot_keeper_called_twice_at_one_position_stores_one_snapshot(world: World) -> None:
    await world.keeper.keep(world.machine)
    assert world.store.positions() == []  # there is none
    world.apply(7)
    assert not world.keeper.is_due
    world.keeper.ask()
    assert world.keeper.is_due
    for _ in range(2):
        await world.keeper.keep(world.machine)
    assert world.store.positions() == [7]
    assert not world.keeper.is_due
    newest = await world.keeper.newest(lambda _: True)
    assert newest is not None
    assert newest.state == b"7"


async def test_service_snapshot_keeper_retains_the_log_from_the_newest_compared_snapshot(world: World) -> None:
    assert await world.retain_from() == 0
    await world.take_snapshots(3)
    assert await world.retain_from() == 0
    for compared_end, retain_from in ((4, 0), (5, 5), (14, 10), (15, 15)):
        world.outbox.compared_end = compared_end
        assert await world.retain_from() == retain_from
    without = SnapshotKeeper(world.store, ServiceSettings("count", "in", "n1", Path("x")), None)
    await without.newest(lambda snapshot: snapshot.position < 15)
    assert without.retain_from() == 10


async def test_service_snapshot_keeper_after_files_are_deleted_retains_the_log_from_an_existing_file(
    world: World,
) -> None:
    await world.take_snapshots(6)  # without compared outputs, the store keeps the oldest file and the newest three
    for compared_end in range(31):
        world.outbox.compared_end = compared_end
        assert await world.retain_from() in (0, *world.store.positions())


async def test_service_snapshot_keeper_after_restarts_keeps_the_snapshot_from_which_the_log_is_retained(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.take_snapshots(5)
    world.outbox.compared_end = 15
    assert await world.retain_from() == 15
    for _ in range(4):  # processes that end before they have compared their outputs
        world = World(tmp_path)
        world.machine.start(await world.keeper.newest(lambda _: True))
        await world.take_snapshots(2)
        assert world.keeper.retain_from() == 15
        assert [stored.position for stored in world.keeper.offers()] == [15]
        world.keeper.confirm_first_state()
        assert 15 in dict(world.keeper.digests), "no node downloads a snapshot whose digest is not reported"
    end = world.machine.position
    assert world.store.positions() == [15, end - 10, end - 5, end]
    world.outbox.compared_end = end
    assert await world.retain_from() == end
    await world.take_snapshots(1)
    assert world.store.positions() == [end - 5, end, end + 5]


async def test_service_snapshot_keeper_after_a_truncation_does_not_retain_a_new_snapshot_at_the_old_position(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.take_snapshots(3)
    world.outbox.compared_end = 15
    assert await world.retain_from() == 15
    await world.keeper.drop_above(10)
    world.outbox.compared_end = 0
    world.machine = ServiceMachine(Count(), WHO, snapshot_interval_records=1000, outbox=world.outbox)
    world.machine.start(await world.keeper.newest(lambda _: True))
    await world.take_snapshots(1)
    assert world.store.positions()[-1] == 15
    assert await world.retain_from() == 0
    later = World(tmp_path)
    await later.keeper.newest(lambda _: True)
    assert later.keeper.retain_from() == 0


async def test_service_snapshot_keeper_that_replaces_the_retained_snapshot_does_not_retain_the_new_one(tmp_path: Path) -> None:
    """The outputs of the new one may differ, because the service skips a record that it had applied."""
    world = World(tmp_path)
    await world.take_snapshots(3)
    world.outbox.compared_end = 15
    assert await world.retain_from() == 15
    earlier = await world.keeper.newest(lambda snapshot: snapshot.position <= 10)
    world.outbox.compared_end = 0
    world.machine = ServiceMachine(Count(), WHO, snapshot_interval_records=1000, outbox=world.outbox)
    world.machine.start(earlier)
    world.machine.skip(Unit(12))
    await world.take_snapshots(1)
    assert world.store.positions() == [5, 10, 15]
    assert await world.retain_from() == 0
    later = World(tmp_path)
    await later.keeper.newest(lambda _: True)
    assert later.keeper.retain_from() == 0


async def test_snapshot_keeper_with_a_pinned_snapshot_deletes_it_only_after_its_release(world: World) -> None:
    await world.take_snapshots(2)
    world.outbox.compared_end = 1000
    world.keeper.pin(5)
    await world.take_snapshots(4)
    assert world.store.positions() == [5, 20, 25, 30]
    world.keeper.pin(0)
    await world.take_snapshots(1)
    assert world.store.positions() == [25, 30, 35]


class Forgetful(Count):
    """A service whose snapshots cannot be restored."""

    @classmethod
    def check_snapshot(cls, state: bytes) -> None:
        raise ValueError(state)


@pytest.mark.parametrize("forgetful", [False, True])
async def test_service_snapshot_keeper_retains_the_log_if_a_snapshot_cannot_be_read_back(
    tmp_path: Path, *, forgetful: bool
) -> None:
    world = World(tmp_path)
    world.outbox.compared_end = 1_000
    if forgetful:
        world.machine = ServiceMachine(Forgetful(), WHO, snapshot_interval_records=1000, outbox=world.outbox)
        world.machine.start(None)
        world.outbox.compared_end = 1_000
    world.apply(3)
    await world.keeper.keep(world.machine)
    assert bool(world.keeper.problem) is forgetful
    assert world.store.positions() == ([] if forgetful else [3])
    assert await world.retain_from() == (0 if forgetful else 3)
