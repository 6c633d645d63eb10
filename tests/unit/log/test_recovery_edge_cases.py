"""Test what recovery removes, truncates and leaves, file by file [S1, S3, S5]."""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import recover
from liftpy.core.log.segment import Segment, index_name, log_name, walk
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import CorruptionError
from tests.batches import build_batch
from tests.unit.log.small_logs import a_log, add, filled


def a_file(*batches: bytes) -> MemoryStorage:
    storage = MemoryStorage()
    storage.create(log_name(0)).append(batches)
    return storage


def a_batch(base_offset: int, epoch: int, count: int = 2) -> bytes:
    return build_batch([b"v"] * count, base_offset=base_offset, leader_epoch=epoch)


def test_recovery_after_a_fault_counts_only_batches_with_plausible_offsets_as_valid() -> None:
    first, wrong = a_batch(4, 5), b"\0" * 90
    for behind, valid in ((a_batch(5, 5), False), (a_batch(6, 5), True), (b"LB\x01" * 3 + a_batch(6, 5), True)):
        storage = a_file(first, wrong, behind)
        found = walk(Segment(4, storage.open(log_name(0)), 4))
        assert (found.end, found.changed_in_place) == (len(first), valid)


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
    storage.create("12.log")
    storage.create("\u00b2.log")
    again, report = Log.open(storage, StreamConfig(), clean=True)
    assert ([segment.base_offset for segment in again.segments], report.damage) == ([0, 6, 12], ())
    assert {"notes.log", "12.log.old", "12.log", "\u00b2.log"} <= set(storage.names())


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
