"""Test the backup of one partition: from any replica, at a limited rate, during retention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from liftpy.client.positions import Bounds
from liftpy.client.replica_reads import DamagedRecordsError, ReplicaUnavailableError
from liftpy.core.backup.manifest import PartitionCopy
from liftpy.errors import CorruptionError, NotFoundError, UnavailableError
from sidecar.backup import create
from sidecar.backup.store import Store
from tests.unit.backup.one_partition import NODES, Cluster
from tests.unit.backup.stored import UID, log_of


class World(Cluster):
    """A cluster and a store. ``spent``: bytes that the rate limit has counted. ``after_read``: called after each batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        super().__init__(monkeypatch)
        self.spent = 0
        self.after_read: Callable[[], None] = lambda: None
        self.store = Store.at(str(folder))
        monkeypatch.setattr(create, "BackupRateLimit", lambda rate: SimpleNamespace(spent=self.spend))

    async def spend(self, size_bytes: int) -> None:
        self.spent += size_bytes
        self.after_read()

    async def take(self, high_watermark: int = 79, since: str | None = "") -> PartitionCopy:
        """Take a backup. Records up to offset 79 are committed after it begins.

        ``since``: None to use the pieces of the newest backup again.
        """
        marks = iter([high_watermark])

        async def bounds(stream: str, number: int) -> Bounds:
            return replace(await self._bounds(stream, number), high_watermark=next(marks, 79))

        self.bounds = bounds
        options = create.BackupOptions(piece_bytes=3 * self.log[0].header.size_bytes, since=since)
        (stream,) = (await create.take_backup(self, self.store, options)).manifest.streams  # type: ignore[arg-type]
        return stream.partitions[0]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    return World(monkeypatch, tmp_path)


async def test_partition_backup_is_split_into_pieces_of_whole_batches_and_read_from_a_follower(world: World) -> None:
    copy = await world.take()
    assert [(piece.start, piece.end) for piece in copy.pieces] == [(0, 30), (30, 60), (60, 80)]
    assert world.spent == sum(batch.header.size_bytes for batch in world.log)
    assert {node for node, _ in world.asked} == {"n2"}, "the leader has other work"
    assert [(piece.start, piece.end) for piece in (await world.take(24)).pieces] == [(0, 30)]


async def test_partition_backup_skips_absent_and_damaged_replicas(world: World) -> None:
    damaged = DamagedRecordsError("a flip", 0)
    world.fails = {"n2": ReplicaUnavailableError("no answer"), "n3": damaged}
    assert (await world.take()).pieces[-1].end == 80
    world.fails["n1"] = ReplicaUnavailableError("no answer")
    with pytest.raises(UnavailableError, match="no replica gives offset 0"):
        await world.take()
    world.fails = dict.fromkeys(NODES, damaged)
    with pytest.raises(CorruptionError):
        await world.take()


async def test_partition_backup_follows_replicas_that_moved_to_other_nodes(world: World) -> None:
    world.move(UID, "n4", "n5")
    assert (await world.take()).pieces[-1].end == 80
    world.start, world.state = 10, (80, b"state")
    assert (await world.take()).state is not None
    world.move("another", "n4", "n5")
    with pytest.raises((UnavailableError, NotFoundError)):
        await world.take()


async def test_partition_backup_overtaken_by_retention_restarts_at_the_new_log_start(world: World) -> None:
    def delete_records() -> None:
        world.start, world.state = 40, (77, b"producers")

    world.after_read = delete_records
    copy = await world.take()
    assert (copy.start, copy.pieces[0].start, copy.pieces[-1].end) == (40, 40, 80)
    assert copy.state is not None
    assert copy.state.end == 77, "the state of a replica has what retention deleted during the backup"
    assert world.store.read(copy.state.file.path) == b"producers"
    world.start, world.uid = 0, "00000b-20"
    with pytest.raises(NotFoundError, match="was deleted"):
        await world.take()


@pytest.mark.parametrize("calls_before", range(1, 5))
async def test_partition_backup_never_takes_the_offsets_of_a_new_stream_with_the_same_name(
    world: World, calls_before: int
) -> None:
    """The stream is deleted and created again while retention makes the backup ask for the bounds of its log."""

    def delete_records() -> None:
        world.start, world.state = 40, (77, b"producers")

    calls: list[int] = []

    async def bounds(stream: str, number: int) -> Bounds:
        calls.append(number)
        found = await world._bounds(stream, number)
        return found if len(calls) <= calls_before else replace(found, uid="00000b-20", log_start_offset=0, high_watermark=-1)

    world.after_read, world.bounds = delete_records, bounds
    options = create.BackupOptions(piece_bytes=3 * world.log[0].header.size_bytes, since="")
    taking = create.take_backup(world, world.store, options)  # type: ignore[arg-type]
    if calls_before < 4:
        with pytest.raises(NotFoundError, match="was deleted"):
            await taking
        assert world.store.sizes("") == {}
    else:
        assert (await taking).manifest.streams[0].partitions[0].pieces[-1].end == 80


@pytest.mark.parametrize("same", [True, False])
async def test_partition_backup_reuses_earlier_pieces_only_of_an_unchanged_log(world: World, same: bool) -> None:
    before = await world.take(59)
    world.asked.clear()
    if not same:
        world.log = log_of(8, epoch=7)  # an unclean election leaves other records at the same offsets
    copy = await world.take(79, since=None)
    assert [piece.file in {one.file for one in before.pieces} for piece in copy.pieces] == [same, same, False]
    assert [(piece.start, piece.end) for piece in copy.pieces] == [(0, 30), (30, 60), (60, 80)]
    assert sum(offset < 50 for _, offset in world.asked) == (0 if same else 5)


async def test_partition_backup_of_a_compacted_log_ends_at_the_compacted_offset(world: World) -> None:
    def compact() -> None:
        world.compacted_end = 60

    world.after_read = compact
    copy = await world.take(39)
    assert (copy.pieces[-1].end, copy.high_watermark, copy.compacted_end) == (60, 59, 60)


async def test_partition_backup_restarts_when_unread_tombstones_were_deleted(world: World) -> None:
    before = await world.take(59)
    world.deletes_end = 70
    copy = await world.take(79, since=None)
    assert not {piece.file for piece in copy.pieces} & {piece.file for piece in before.pieces}
    assert (copy.pieces[0].start, copy.pieces[-1].end, copy.deletes_end) == (0, 80, 70)
