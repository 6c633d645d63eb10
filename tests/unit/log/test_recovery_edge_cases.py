"""Test what recovery removes, truncates and leaves, file by file [S1, S3, S5]."""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import EVERY_NS, MAX_ASKERS, Log, RecheckLimiter
from liftpy.core.log.recovery import BEHIND, delete_quarantined_files, recover, set_aside
from liftpy.core.log.segment import Segment, index_name, log_name, walk
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import build_batch
from liftpy.errors import CorruptionError
from tests.unit.log.small_logs import a_log, add, filled


def a_file(*batches: bytes) -> MemoryStorage:
    storage = MemoryStorage()
    storage.create(log_name(0)).append(batches)
    return storage


def a_batch(base_offset: int, epoch: int, count: int = 2) -> bytes:
    return build_batch([b"v"] * count, base_offset=base_offset, leader_epoch=epoch)


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        (a_batch(1, 5), "The batch at offset 1, LeaderEpoch 5, does not follow the last record of the segment at offset 1"),
        (a_batch(0, 5), "The batch at offset 0, LeaderEpoch 5, does not follow the last record of the segment at offset 1"),
        (a_batch(2, 4), "The batch at offset 2, LeaderEpoch 4, does not follow the last record of the segment at offset 1"),
        (a_batch(2, 5), ""),
        (a_batch(9, 6), ""),
    ],
)
def test_recovery_scan_stops_at_a_valid_batch_with_wrong_offset_or_epoch(second: bytes, fault: str) -> None:
    first = a_batch(0, 5)
    storage = a_file(first, second)
    segment = Segment(0, storage.open(log_name(0)), 0)
    found = walk(segment)
    assert (found.end, found.fault) == (len(first) if fault else len(first) + len(second), fault)
    assert segment.checked is not bool(fault)


def test_recovery_after_a_fault_counts_only_batches_with_plausible_offsets_as_valid() -> None:
    first, wrong = a_batch(4, 5), b"\0" * 90
    for behind, valid in ((a_batch(5, 5), False), (a_batch(6, 5), True), (b"LB\x01" * 3 + a_batch(6, 5), True)):
        storage = a_file(first, wrong, behind)
        found = walk(Segment(4, storage.open(log_name(0)), 4))
        assert (found.end, found.valid_behind) == (len(first), valid)


def test_recovery_removes_empty_segments_after_a_torn_segment() -> None:
    """A power cut between a roll and its flush left the new names, and not the bytes before them."""
    storage = MemoryStorage()
    log = a_log(storage)
    add(log, 2)
    add(log, 2)
    size = log.segments[0].size_bytes
    log.roll()
    storage.files[log_name(0)].data[size - 3 :] = b""
    storage.create(log_name(7))
    found = recover(storage)
    assert found.report.damage == ()
    assert found.report.cut_bytes == size // 2 - 3
    assert [segment.next_offset for segment in found.segments] == [2]
    assert [name for name in storage.names() if name.endswith(".log")] == [log_name(0)]


def test_recovery_removes_files_of_merged_and_deleted_segments() -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    log.close()
    merged = 3
    storage.create(log_name(merged)).append([a_batch(merged, 1, 1)])
    storage.replace(index_name(merged), b"old")
    storage.replace(index_name(99), b"of nothing")
    again, report = Log.open(storage, StreamConfig(), clean=True)
    assert report.damage == ()
    assert [segment.base_offset for segment in again.segments] == [0, 6, 12]
    assert not {log_name(merged), index_name(merged), index_name(99)} & set(storage.names())


def test_log_reset_leaves_no_unflushed_records() -> None:
    log = a_log()
    add(log)
    log.roll()
    add(log)
    log.start_afresh(50)
    assert not log.needs_flush
    add(log)
    flush = log.begin_flush()
    assert flush is not None
    assert (flush.is_plain, flush.seals, flush.end_offset) == (True, (), 51)


def test_damage_report_recheck_limit_drops_the_peer_with_the_oldest_report() -> None:
    rechecks = RecheckLimiter()
    assert rechecks.is_due("first", 0)
    for number in range(MAX_ASKERS - 1):
        assert rechecks.is_due(f"n{number}", 0)
    assert rechecks.is_due("first", EVERY_NS)
    assert rechecks.is_due("one more", EVERY_NS)
    assert not rechecks.is_due("first", EVERY_NS + 1), "n0 was forgotten for the one more"
    assert rechecks.is_due("n0", 1)


def test_recovery_retains_segments_before_a_torn_segment() -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    add(log, epoch=2)
    log.roll()
    torn = storage.files[log_name(12)]
    del torn.data[-3:]
    found = recover(storage, clean=False)
    assert (found.report.damage, found.report.cut_bytes > 0) == ((), True)
    assert [segment.base_offset for segment in found.segments][:3] == [0, 6, 12]
    assert [name for name in storage.names() if name.endswith(".log")][:3] == [log_name(0), log_name(6), log_name(12)]
    assert log_name(19) not in storage.names()


def test_recovery_ignores_files_that_are_no_segments() -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.create("notes.log").append([b"of an operator"])
    storage.create("12.log.old")
    again, report = Log.open(storage, StreamConfig(), clean=True)
    assert ([segment.base_offset for segment in again.segments], report.damage) == ([0, 6, 12], ())
    assert {"notes.log", "12.log.old"} <= set(storage.names())


def test_quarantine_drop_removes_files_and_flushes_the_directory() -> None:
    storage = MemoryStorage()
    for number in range(2):
        storage.create(log_name(number))
        set_aside(storage, number, BEHIND)
    assert len(delete_quarantined_files(storage)) == 2
    assert storage.crash().names() == []
    assert delete_quarantined_files(storage) == ()


def test_log_offset_for_timestamp_in_damaged_bytes_raises_and_reports_damage() -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    log, told = a_log(storage), list[CorruptionError]()
    log.on_damage = told.append
    storage.files[log_name(0)].data[-40] ^= 1
    with pytest.raises(CorruptionError) as met:
        log.offset_for_timestamp(2)
    assert told == [met.value]
    assert storage.load(index_name(0)) is None
