"""Test when a segment is rolled, and what truncation and retention remove [D13, S5]."""

from __future__ import annotations

from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.compaction_point import NEVER
from liftpy.core.log.log import AT_ONCE, Log, retained_start
from liftpy.core.log.segment import index_name, log_name
from liftpy.core.log.small_files import Checkpoint
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import split_batches
from tests.batches import build_batch
from tests.each import each
from tests.unit.log.small_logs import S, a_log, add, filled, stored


def offsets_of(log: Log, start: int = 0) -> list[int]:
    found, at = [], start
    while at < log.high_watermark + 1:
        result = log.read(at, 1 << 20)
        found += [offset for chunk in result.chunks for batch in split_batches(chunk) for offset in batch.offsets().tolist()]
        at = result.next_offset
    return found


@pytest.mark.parametrize("over", [0, 1])
def test_log_segment_rolls_at_the_configured_size(over: int) -> None:
    size = len(build_batch([b"x" * 1000]))
    log = a_log(segment_bytes=4 * size - over)
    for _ in range(8):
        add(log, size=1000)
    assert [segment.size_bytes // size for segment in log.segments] == ([4, 4] if not over else [3, 3, 2])


@pytest.mark.parametrize(("age_ns", "rolled"), [(59 * S, False), (60 * S, True)])
def test_log_segment_rolls_at_the_configured_age(age_ns: int, rolled: bool) -> None:
    log = a_log(segment_age_s=60.0)
    log.append(build_batch([b"a"], base_offset=0, leader_epoch=1), 1000 * S)
    log.append(build_batch([b"b"], base_offset=1, leader_epoch=1), 1000 * S + age_ns)
    assert len(log.segments) == 1 + rolled


@pytest.mark.parametrize("end", [0, 2, 6, 7, 11, 12, 18])
def test_log_truncation_lowers_all_offsets_epochs_and_the_stored_high_watermark(end: int) -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    whole = end // 2 * 2  # batches of two are atomic
    epochs = [(epoch, start) for epoch, start in log.epochs.entries if start < whole]
    log.checkpoint()
    assert log.truncate_to(end) == whole
    assert (log.log_end_offset, log.durable_end_offset, log.high_watermark) == (whole, whole, whole - 1)
    assert list(log.epochs.entries) == epochs
    assert offsets_of(log) == list(range(whole))
    assert stored(log).high_watermark == min(whole - 1, 17), "stored at once: an older one would say that records are lost"
    sealed = {index_name(segment.base_offset) for segment in log.segments if segment.sealed}
    assert {name for name in storage.names() if name.endswith(".index")} <= sealed, "an index of what was cut"
    add(log, 2, epoch=9)
    assert log.durable_end_offset == whole, "what comes now is not flushed"
    again, report = Log.open(storage.crash(), StreamConfig())
    assert again.log_end_offset == whole
    assert not report.lost_committed


def test_log_reset_clears_offsets_and_epochs_but_not_the_promised_epoch() -> None:
    log = filled()
    log.note_promise(4)
    log.reset(100)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.durable_end_offset) == (100, 100, 99, 100)
    assert log.epochs.entries == ()
    assert log.horizon == NEVER
    assert stored(log) == Checkpoint(99, 100, 4)
    add(log, 1, epoch=1)
    assert log.epochs.entries == ((1, 100),)
    assert log.storage.names().count(log_name(100)) == 1
    assert not [name for name in log.storage.names() if name.endswith(".log") and name != log_name(100)]


def test_log_start_is_stored_before_files_are_removed() -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    seen: list[int] = []
    really = storage.remove
    storage.remove = lambda name: seen.append(stored(log).log_start_offset) or really(name)  # type: ignore[assignment,func-returns-value]
    log.drop_prefix(13)
    assert set(seen) == {12}, "an offset inside a batch is lowered to its first"
    assert (log.log_start_offset, log.epochs.entries[0]) == (12, (2, 12))
    log.drop_prefix(3)
    assert log.log_start_offset == 12, "only ever forward"
    assert offsets_of(log, 12) == list(range(12, 18))


@pytest.mark.parametrize(("committed", "now_s", "start"), [(5, 101, 6), (5, 100, 0), (4, 101, 0), (-1, 101, 0)])
def test_log_retention_by_age_empties_a_fully_committed_log(committed: int, now_s: int, start: int) -> None:
    log = a_log(retention_age_s=100.0)
    add(log, 6, timestamp_ns=1)
    log.flush()
    log.raise_high_watermark(committed)
    assert log.apply_retention(now_s * S) is (start > 0)
    assert (log.log_start_offset, len(log.segments), log.log_end_offset) == (start, 1, 6)
    assert log.apply_retention(now_s * S) is False


def test_log_retention_step_flushes_the_directory_a_limited_number_of_times() -> None:
    log = a_log(retention_records=1)
    for _ in range(3 * AT_ONCE):
        add(log, 2)
        log.roll()
    log.flush()
    log.raise_high_watermark(log.log_end_offset - 1)
    storage, flushes = log.storage, 0
    really = storage.sync_folder

    def counted() -> None:
        nonlocal flushes
        flushes += 1
        really()

    storage.sync_folder = counted  # type: ignore[method-assign]
    while True:
        flushes, is_moved = 0, log.apply_retention(0)
        assert flushes <= AT_ONCE + 2
        if not is_moved:
            break
    assert log.log_start_offset == log.log_end_offset - 2


@pytest.mark.parametrize(("retain_from", "hold_bytes", "start"), [(None, 0, 6), (5, 1 << 20, 2), (5, 10, 6), (6, 1 << 20, 6)])
def test_log_retention_does_not_delete_records_that_a_service_still_needs(
    retain_from: int | None, hold_bytes: int, start: int
) -> None:
    log = a_log(retention_records=1)
    for count in (2, 4, 1):
        add(log, count)
        log.roll()
    log.flush()
    log.raise_high_watermark(6)
    log.segments[-2].created_wall_ns = 0
    assert log.apply_retention(0, retain_from, hold_bytes)
    assert log.log_start_offset == start


class Held:
    """A segment, as retention sees one."""

    def __init__(self, base: int, records: int = 10, size: int = 100, newest_ns: int = 0) -> None:
        self.base_offset, self.next_offset = base, base + records
        self.size_bytes, self.record_count, self.max_timestamp_ns = size, records, newest_ns


@each(
    ("config", "start"),
    [
        ({}, 0),
        ({"retention_records": 30}, 10), ({"retention_records": 31}, 0), ({"retention_records": 21}, 10),
        ({"retention_records": 20}, 20),
        ({"retention_bytes": 300}, 10), ({"retention_bytes": 301}, 0), ({"retention_bytes": 200}, 20), ({"retention_bytes": 1}, 30),
        ({"retention_age_s": 100.0}, 0), ({"retention_age_s": 99.0}, 10), ({"retention_age_s": 79.0}, 30),
        ({"retention_age_s": 1.0}, 30),
    ],
)  # fmt: skip
def test_retained_start_is_the_lowest_offset_allowed_by_size_count_and_age_limits(config: dict[str, Any], start: int) -> None:
    """Four segments of 10 records and 100 bytes have the times 0, 10, 20 and 30 s. The clock shows 100 s."""
    segments = [Held(10 * n, newest_ns=10 * n * S) for n in range(4)]
    assert retained_start(segments, StreamConfig(**config), 39, 100 * S) == start
    for hw in (-1, 8, 9, 19):
        assert retained_start(segments, StreamConfig(**config), hw, 100 * S) == min(start, (hw + 1) // 10 * 10)


@pytest.mark.parametrize(
    ("asked", "start", "bases"), [(0, 0, [0, 6, 12]), (6, 6, [6, 12]), (9, 8, [6, 12]), (17, 16, [12]), (18, 18, [18])]
)
def test_log_with_a_requested_start_deletes_whole_batches_and_whole_segment_files(
    asked: int, start: int, bases: list[int]
) -> None:
    log = filled()
    log.asked_start = asked
    assert log.may_give_up is (asked > 0)
    assert log.apply_retention(0) is (asked > 0)
    assert (log.log_start_offset, stored(log).log_start_offset if asked else 0) == (start, start)
    assert [segment.base_offset for segment in log.segments] == bases
    assert log.log_end_offset == 18


def test_log_with_a_requested_start_deletes_only_committed_records() -> None:
    log = a_log()
    for _ in range(3):
        add(log, 2)
    log.raise_high_watermark(1)
    log.asked_start = 6
    assert (log.apply_retention(0), log.log_start_offset, len(log.segments)) == (True, 2, 1)
    assert log.may_give_up
    log.raise_high_watermark(5)
    assert (log.apply_retention(0), log.log_start_offset, log.segments[-1].size_bytes) == (True, 6, 0)
    assert not log.may_give_up
    add(log, 2)
    log.raise_high_watermark(7)
    assert (log.apply_retention(0), log.log_start_offset) == (False, 6)


def test_log_with_a_requested_start_deletes_a_bounded_number_of_segments_per_call() -> None:
    log = filled(AT_ONCE + 9, roll_every=1)
    log.asked_start = log.log_end_offset
    assert log.apply_retention(0)
    assert (log.log_start_offset, len(log.segments)) == (2 * AT_ONCE, 10)  # the last one was rolled
    assert log.apply_retention(0)
    assert (log.log_start_offset, len(log.segments)) == (log.log_end_offset, 1)
