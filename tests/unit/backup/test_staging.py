"""Test logs that a restore builds from backup pieces: content, end offset, and damaged pieces."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from liftpy.client import Client
from liftpy.config import StreamConfig
from liftpy.core.backup.manifest import PartitionCopy, StreamCopy, manifest_path
from liftpy.core.backup.pieces import cut_batch, end_of, first_leader_epoch
from liftpy.core.log.inspect import inspect
from liftpy.core.log.log import Log
from liftpy.core.publish.dedup_window import RecentIds
from liftpy.core.publish.producer_state import Producers
from liftpy.core.wire.batch import RecordBatch, build_filler, parse_batch, split_batches
from liftpy.errors import ConfigError, CorruptionError
from liftpy.testing.memory import memory_cluster
from sidecar.backup.create import BackupOptions, take_backup
from sidecar.backup.inspect import read_image, verify_backup
from sidecar.backup.restore import RestoredStream, RestoreResult, StreamRestore
from sidecar.backup.staging import NOWHERE, LogDigest, RestorePoint, StagedLog, stage
from sidecar.backup.store import Store
from sidecar.cli.backup import until_of
from sidecar.disk.files import DirectoryStorage
from tests.batches import build_batch
from tests.unit.backup.stored import THIRD, copied, log_of, seal_manifest, two_backups

SMALL = StreamConfig(segment_bytes=4096)


def staged(tmp_path: Path, copy: PartitionCopy, until: RestorePoint = NOWHERE) -> tuple[StagedLog, list[RecordBatch], Log]:
    store = two_backups(tmp_path / "store")[0]
    folder = tmp_path / "log"
    done = stage(store, copy, SMALL, folder, until, lambda path: None)
    assert not inspect(DirectoryStorage(folder)).faults
    log, _ = Log.open(DirectoryStorage(folder), SMALL)
    found: list[RecordBatch] = []
    position = log.log_start_offset
    while position < log.log_end_offset:
        found += split_batches(b"".join(log.read(position, 1 << 20).chunks))
        position = found[-1].next_offset
    return done, found, log


def bytes_of(batches: list[RecordBatch]) -> bytes:
    return b"".join(batch.view for batch in batches)


def test_restored_log_has_the_bytes_of_its_pieces(tmp_path: Path) -> None:
    copy = two_backups(tmp_path / "store")[2].streams[0].partitions[0]
    done, found, log = staged(tmp_path, copy)
    assert bytes_of(found) == bytes_of(log_of(10))
    assert (done.start, done.end, done.records) == (0, 100, 100)
    assert log.high_watermark == 99
    assert log.epochs.entries == ((3, 0), (4, 40), (5, 80))
    digest = LogDigest()
    for batch in log_of(10):
        digest.add(batch)
    assert done.digest == digest.hexdigest()
    assert done.size_bytes == digest.size_bytes


def test_restored_log_starts_at_the_first_offset_of_its_first_piece(tmp_path: Path) -> None:
    """The first piece begins below the log start."""
    old = two_backups(tmp_path / "store")[2].streams[0].partitions[0]
    done, found, log = staged(tmp_path, replace(old, start=25))
    assert (done.start, log.log_start_offset, found[0].base_offset) == (20, 20, 20)
    assert bytes_of(found) == bytes_of(log_of(10)[2:])


def test_restored_empty_log_has_the_log_start_of_the_backup(tmp_path: Path) -> None:
    done, found, log = staged(tmp_path, PartitionCopy(partition=0, start=70, high_watermark=69))
    assert (done.start, done.end, log.log_end_offset, found) == (70, 70, 70, [])


@pytest.mark.parametrize(("last", "whole"), [(46, 4), (49, 5), (50, 5), (0, 0), (98, 9), (99, 10), (500, 10)])
def test_restore_until_an_offset_includes_the_record_at_the_offset(tmp_path: Path, last: int, whole: int) -> None:
    """Only the last batch changes."""
    copy = two_backups(tmp_path / "store")[2].streams[0].partitions[0]
    done, found, log = staged(tmp_path, copy, RestorePoint(offset=last))
    assert log.log_end_offset == done.end == min(last + 1, 100)
    assert bytes_of(found[:whole]) == bytes_of(log_of(10)[:whole])
    assert [value for batch in found for value in batch.values()] == [b"%d" % n for n in range(done.end)]


def test_restore_until_a_time_ignores_later_records_with_earlier_timestamps(tmp_path: Path) -> None:
    """The clock of a new leader may be behind."""
    stamps = (100, 300, 200)
    data = [build_batch([b"a", b"b"], base_offset=2 * n, leader_epoch=1, timestamp_ns=at) for n, at in enumerate(stamps)]
    store = two_backups(tmp_path / "store")[0]
    copy = copied(store, THIRD, split_batches(b"".join(data)))
    done = stage(store, copy, SMALL, tmp_path / "log", RestorePoint(time_ns=250), lambda path: None)
    assert (done.start, done.end, done.records) == (0, 2, 2)


def test_restore_until_a_time_ends_before_the_first_later_record() -> None:
    stamped = [100, 200, 150, 300]
    batch = parse_batch(build_batch([b"a", b"b", b"c", b"d"], base_offset=10, timestamps_ns=stamped, timestamp_ns=100))
    assert end_of(batch, None, 150) == 11
    assert end_of(batch, None, 100) == 10
    assert end_of(batch, None, 301) is None
    assert end_of(batch, 12, 300) == 13
    assert end_of(batch, 13, None) is None
    assert end_of(batch, 3, None) == 10, "it ends before this batch"
    assert end_of(parse_batch(build_filler(5, 9, 2, 400)), None, 100) is None, "nobody published a filler"


def test_restore_until_an_offset_inside_a_batch_keeps_the_earlier_records() -> None:
    batch = parse_batch(
        build_batch(
            [b"a", None, b"c"], keys=[b"k", b"k", None], headers=[(("h", b"1"),), None, None], subjects=["s.a", "s.b", "s.a"],
            offset_deltas=[0, 2, 5], base_offset=20, leader_epoch=7, timestamp_ns=9, producer_id=5, base_sequence=3, producer_epoch=1,
        )
    )  # fmt: skip
    cut = cut_batch(batch, 24)
    assert cut is not None
    assert list(cut.records()) == list(batch.records())[:2]
    assert (cut.next_offset, cut.leader_epoch, cut.header.producer_id, cut.header.base_sequence) == (24, 7, 5, 3)
    assert cut_batch(batch, 20) is None
    gap = cut_batch(parse_batch(build_filler(5, 9, 2, 400)), 7)
    assert gap is not None
    assert (gap.base_offset, gap.next_offset, gap.record_count) == (5, 7, 0)
    assert not np.any(gap.offsets())


def test_restore_of_a_damaged_piece_raises_with_the_piece_and_writes_nothing(tmp_path: Path) -> None:
    store, _, two = two_backups(tmp_path / "store")
    copy = two.streams[0].partitions[0]
    path = copy.pieces[-1].file.path
    file = tmp_path / "store" / path
    wrong = bytearray(file.read_bytes())
    wrong[100] ^= 1
    file.write_bytes(wrong)
    for until in (NOWHERE, RestorePoint(offset=3)):
        with pytest.raises(CorruptionError, match=path):
            stage(store, copy, SMALL, tmp_path / f"log{until.offset}", until, lambda _: None)


def test_restore_first_leader_epoch_is_above_the_epochs_of_backup_and_cluster(tmp_path: Path) -> None:
    two = two_backups(tmp_path)[2]
    assert first_leader_epoch(two, 1) > two.leader_epoch
    assert first_leader_epoch(two, 10_000) > 10_000
    later = replace(two, leader_epoch=2, streams=(StreamCopy(name="o", uid="1-1", partitions=two.streams[0].partitions),))
    assert first_leader_epoch(later, 1) > two.streams[0].partitions[0].epoch > later.leader_epoch, (
        "a record's own counts as well"
    )


def test_restore_until_option_is_parsed_to_an_offset_or_a_time() -> None:
    assert until_of(None) == NOWHERE
    assert until_of("17") == RestorePoint(offset=17)
    assert until_of("2026-01-31T12:00:00") == RestorePoint(time_ns=1769860800 * 10**9)
    for wrong in ("end", "tomorrow"):
        with pytest.raises(ConfigError):
            until_of(wrong)


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[tuple[Client, Store]]:
    """Return a stream whose producer ``job`` published 30 records. All records are deleted."""
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("jobs", "shop.jobs")
        async with client.producer("jobs", id="job") as producer:
            await (await producer.send_many([b"%d" % number for number in range(30)]))
        await client.admin.truncate_before("jobs", 0, 30)
        yield client, Store.at(str(tmp_path / "store"))


def next_sequence(staged: StagedLog) -> int:
    """Return the next sequence of the only producer in the state of a restored log, or 0 without a state."""
    producers = Producers(0, 1000)
    if staged.state is not None:
        producers.restore(staged.state.parts[producers.name][1], staged.state.end_offset)
    (found,) = map(producers.state_of, producers.producer_ids or (0,))
    return 0 if found is None else found.next_sequence


async def test_backup_after_a_record_deletion_restores_the_producer_state(jobs: tuple[Client, Store], tmp_path: Path) -> None:
    client, store = jobs
    manifest = (await take_backup(client, store, BackupOptions())).manifest
    assert not verify_backup(store, manifest).faults
    done = stage(store, manifest.streams[0].partitions[0], SMALL, tmp_path / "log", NOWHERE, lambda path: None)
    assert (done.start, done.end, next_sequence(done), done.state_left_out) == (30, 30, 30, "")


async def test_restore_of_an_older_backup_reports_partitions_without_producer_state(
    jobs: tuple[Client, Store], tmp_path: Path
) -> None:
    client, store = jobs
    await client.publish("jobs", b"one that is left")
    path = tmp_path / "store" / manifest_path((await take_backup(client, store, BackupOptions())).manifest.backup)
    said = json.loads(path.read_text())["manifest"]
    del said["streams"][0]["partitions"][0]["state"]
    path.write_bytes(seal_manifest(said))
    old = store.newest()
    assert not verify_backup(store, old).faults
    done = stage(store, old.streams[0].partitions[0], SMALL, tmp_path / "log", NOWHERE, lambda path: None)
    assert (done.start, done.end, done.records, done.state) == (30, 31, 1, None)
    assert "earlier version" in done.state_left_out
    stream = RestoredStream(StreamRestore(name="jobs", into="jobs", subject="s", config=SMALL), old.streams[0], logs=[done])
    assert list(RestoreResult([stream]).states_left_out()) == ["jobs/0"]


async def test_restore_of_a_stream_without_producers_reports_the_producer_state_as_complete(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path / "store"))
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("plain", "shop.plain")
        for _ in range(2):
            await client.publish("plain", b"nobody numbers it")
        await client.admin.truncate_before("plain", 0, 1)
        await take_backup(client, store, BackupOptions())
    (copy,) = store.newest().streams[0].partitions
    done = stage(store, copy, SMALL, tmp_path / "log", NOWHERE, lambda path: None)
    assert (done.start, done.records, done.state_left_out) == (1, 1, "")


async def test_restore_of_a_backup_with_a_pending_purge_keeps_producers_and_message_ids(tmp_path: Path) -> None:
    store = Store.at(str(tmp_path / "store"))
    async with memory_cluster() as cluster, cluster.client() as client:
        await client.create_stream("jobs", "shop.jobs")
        async with client.producer("jobs", id="job") as producer:
            await (await producer.send_many([b"%d" % number for number in range(5)], keys=[b"ann"] * 5))
        await client.publish("jobs", b"with an id", key=b"ann", msg_id="once")
        await client.admin.purge("jobs", 0, keys=[b"ann"])
        manifest = (await take_backup(client, store, BackupOptions())).manifest
        image = read_image(store, manifest).streams["jobs"]
        (purge,) = image.partitions[0].purges
    (copy,) = manifest.streams[0].partitions
    done = stage(store, copy, SMALL, tmp_path / "log", NOWHERE, lambda path: None, (purge,))
    assert (done.end, done.records, next_sequence(done)) == (6, 0, 5)
    assert done.state is not None
    ids = RecentIds(120 * 10**9, 1 << 20, lambda: 0)
    ids.restore(done.state.parts[ids.name][1], done.state.end_offset)
    assert ids.find(b"once", manifest.created_ns) is not None
