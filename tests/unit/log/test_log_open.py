"""Test how a log opens after a clean stop, a kill and a power cut [D7, S4, S6, S7]."""

from __future__ import annotations

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log import recovery, small_files
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME, recover
from liftpy.core.log.segment import index_name, log_name
from liftpy.core.log.small_files import CHECKPOINT_NAME, Checkpoint
from liftpy.core.log.storage import MemoryStorage
from tests.unit.log.small_logs import a_log, add, filled


@pytest.mark.parametrize(("hw", "lost"), [(16, False), (17, False), (18, True)])
def test_log_open_with_checkpoint_above_the_log_reports_lost_committed_records(hw: int, lost: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.replace(CHECKPOINT_NAME, small_files.encode_checkpoint(Checkpoint(hw, 0, 0)))
    log, report = Log.open(storage, StreamConfig(), clean=True)
    assert report.lost_committed is lost
    assert report.must_leave_isr is lost
    assert log.high_watermark == min(hw, 17)


def test_log_open_high_watermark_is_never_below_the_log_start() -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    log.drop_prefix(12)
    log.close()
    storage.remove(CHECKPOINT_NAME)
    again, report = Log.open(storage, StreamConfig(), clean=True)
    assert not report.checkpoint_found
    assert again.log_start_offset == 12
    assert again.high_watermark >= again.log_start_offset - 1


@pytest.mark.parametrize("clean", [True, False])
def test_log_open_with_a_torn_tail_after_a_clean_stop_reports_lost_flushed_data(clean: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.files[log_name(12)].data += b"torn"
    _, report = Log.open(storage, StreamConfig(), clean=clean)
    assert report.cut_bytes == 4
    assert report.lost_flushed is clean
    assert report.must_leave_isr is clean


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("failed", [True, False])
def test_log_open_after_a_clean_stop_without_flush_failure_rewrites_no_record(clean: bool, failed: bool) -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    log.close()
    again = a_log(storage)
    add(again, epoch=3)
    again.close()
    storage.remove(CHECKPOINT_NAME)
    if failed:
        storage.replace(FLUSH_FAILED_NAME, b"once")
    report = recover(storage, clean=clean).report
    assert (report.rewritten_bytes > 0) is (failed or not clean)
    assert storage.load(FLUSH_FAILED_NAME) is None
    assert bool(report.flush_failed) is failed


def test_log_open_rewrites_all_records_above_the_durable_high_watermark() -> None:
    storage = MemoryStorage()
    log = a_log(storage)
    for _ in range(4):
        add(log)
    log.flush()
    log.raise_high_watermark(1)
    log.checkpoint()
    size = log.segments[0].size_bytes // 4
    report = recover(storage.crash(power=False)).report
    assert report.rewritten_bytes == 2 * size


def test_log_open_flushes_rewritten_data_before_the_rename() -> None:
    calls: list[str] = []
    storage = MemoryStorage(fault=calls.append)
    log = a_log(storage)
    add(log)
    log.flush()
    left = storage.crash(power=False)
    left.fault = calls.append
    calls.clear()
    recover(left)
    assert calls.index("sync") < calls.index("rename")
    assert left.files[log_name(0)].synced == left.files[log_name(0)].size_bytes


def test_log_open_completes_an_interrupted_segment_split() -> None:
    storage = MemoryStorage()
    log = a_log(storage)
    for _ in range(4):
        add(log)
    log.flush()
    data = bytes(storage.files[log_name(0)].data)
    at = len(data) // 2
    storage.create(f"{log_name(0)}.{at}-{2:020d}.tail").append([data[at:]])
    recovery.finish_splits(storage, storage.names())
    assert bytes(storage.files[log_name(0)].data) == data[:at]
    assert bytes(storage.files[log_name(2)].data) == data[at:]


@pytest.mark.parametrize("wrong", ["longer", "shorter", "another base"])
def test_log_open_ignores_an_index_that_does_not_match_its_segment(wrong: str) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    if wrong == "longer":
        storage.files[log_name(0)].data += b"more"
    elif wrong == "shorter":
        del storage.files[log_name(0)].data[-1:]
    else:
        storage.files[index_name(0)] = storage.files[index_name(6)]
    report = recover(storage, clean=True).report
    assert report.walked_bytes > 0
    assert report.rebuilt_indexes + len(report.damage) > 0


def test_segment_index_with_trailing_bytes_is_rejected() -> None:
    summary = filled().segments[0].summary()
    good = small_files.encode_index(summary)
    assert small_files.decode_index(good) == summary
    body = small_files.open_small_file(b"LFIX", good)
    assert body is not None
    for more in (b"x", bytes(24), b""):
        made = small_files.seal_small_file(b"LFIX", body + more)
        assert small_files.decode_index(made) == (None if more else summary)
    assert small_files.open_small_file(b"LFHW", good) is None, "of another kind"
