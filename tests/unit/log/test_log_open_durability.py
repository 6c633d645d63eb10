"""Test that a power cut removes no record that the log returned after it was opened [S1, S4, S12]."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME, OpenReport, forget_failed_flush
from liftpy.core.log.segment import index_name
from liftpy.core.log.small_files import CHECKPOINT_NAME, Checkpoint, decode_index, encode_checkpoint
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import NoSpaceError, StorageError
from tests.long import every
from tests.unit.log.log_model import content, fill

SMALL = StreamConfig(segment_bytes=4096)
Content = list[tuple[int, bytes | None]]


def opened(storage: MemoryStorage) -> tuple[Log, OpenReport]:
    return Log.open(storage, SMALL)


def lose_power(storage: MemoryStorage) -> Content:
    """What a power cut at this moment leaves, as the next opening shows it."""
    log, report = opened(storage.crash(power=True))
    assert not report.must_leave_isr
    return content(log)


def fail_the_next_sync(storage: MemoryStorage) -> None:
    def fault(what: str) -> None:
        if what == "sync":
            storage.fault = None
            raise StorageError("simulated flush error")

    storage.fault = fault


def killed_with_unflushed_segments() -> tuple[MemoryStorage, Content]:
    log, _ = opened(MemoryStorage())
    fill(log, 10, size=150)
    log.flush()
    log.raise_high_watermark(4)
    log.checkpoint()
    fill(log, 60, size=150)
    assert len(log.segments) > 3
    return log.storage.crash(power=False), content(log)


def killed_after_a_failed_flush() -> tuple[MemoryStorage, Content]:
    log, _ = opened(MemoryStorage())
    fill(log, 10, size=50)
    log.flush()
    log.raise_high_watermark(20)
    log.checkpoint()
    fill(log, 8, size=50)
    written = content(log)
    fail_the_next_sync(log.storage)
    with pytest.raises(StorageError):
        log.flush()
    assert log.begin_flush() is None, "an error from a flush is final"
    return log.storage.crash(power=False), written


def killed_after_a_failed_flush_of_sealed_segments() -> tuple[MemoryStorage, Content]:
    log, _ = opened(MemoryStorage())
    fill(log, 60, size=150)
    written = content(log)
    fail_the_next_sync(log.storage)
    with pytest.raises(StorageError):
        log.flush()
    return log.storage.crash(power=False), written


def killed_while_everything_was_flushed() -> tuple[MemoryStorage, Content]:
    log, _ = opened(MemoryStorage())
    fill(log, 40, size=150)
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    log.checkpoint()
    return log.storage.crash(power=False), content(log)


ENDS = {
    "unflushed segments": killed_with_unflushed_segments,
    "a failed flush": killed_after_a_failed_flush,
    "a failed flush of sealed segments": killed_after_a_failed_flush_of_sealed_segments,
    "everything flushed": killed_while_everything_was_flushed,
}
End = Callable[[], tuple[MemoryStorage, Content]]


def copies(end: End) -> End:
    """``end`` runs once. Each call returns another copy of its storage."""
    kept = cache(end)

    def copied() -> tuple[MemoryStorage, Content]:
        storage, written = kept()
        return storage.crash(power=False), written

    return copied


ends = pytest.mark.parametrize("end", [copies(end) for end in ENDS.values()], ids=ENDS)


@ends
def test_log_open_after_a_kill_returns_only_records_that_a_power_cut_keeps(end: End) -> None:
    storage, written = end()
    log, _ = opened(storage)
    assert content(log) == written, "a kill takes nothing"
    assert lose_power(storage) == written
    fill(log, 30, epoch=2, size=150)
    log.flush()
    assert lose_power(storage) == content(log)


@ends
def test_log_open_after_a_second_kill_returns_the_same_records(end: End) -> None:
    storage, written = end()
    opened(storage)
    again = storage.crash(power=False)
    log, _ = opened(again)
    assert content(log) == written
    assert lose_power(again) == written


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
@ends
def test_log_open_that_crashes_at_any_storage_call_is_completed_by_the_next_open(end: End, power: bool) -> None:
    calls, done = 0, False
    flushed = len(lose_power(end()[0]))
    while not done:
        storage, written = end()
        storage.fail_after(calls)
        try:
            opened(storage)
            done = True
        except StorageError:
            pass
        after = storage.crash(power=power)
        survivor, report = opened(after)
        got = content(survivor)
        assert got == written[: len(got)]
        assert len(got) >= (flushed if power and not done else len(written)), calls
        if report.must_leave_isr:  # names were there, and what they stand for was not: it can't be told from damage
            assert (power, done, bool(report.flush_failed)) == (True, False, True), (calls, report)
        else:
            assert lose_power(after) == got, calls
        calls += every(3)


@ends
def test_log_open_on_a_full_disk_returns_all_records(end: End) -> None:
    storage, written = end()
    storage.capacity_bytes = storage.used_bytes()
    log, report = opened(storage)
    assert not report.must_leave_isr
    assert content(log) == written
    assert lose_power(storage) == written
    with pytest.raises(NoSpaceError):
        fill(log, 1, epoch=2)


@ends
def test_log_open_after_a_clean_close_rewrites_no_record(end: End) -> None:
    storage, _ = end()
    log, first = opened(storage)
    if first.flush_failed:
        forget_failed_flush(storage)  # as a node does when it has registered
    log.close()
    report = Log.open(storage, SMALL, clean=True)[1]
    assert report.rewritten_bytes == 0


def test_log_open_rewrites_only_records_not_known_to_be_durable() -> None:
    storage, _ = killed_while_everything_was_flushed()
    assert opened(storage)[1].rewritten_bytes == 0
    storage, _ = killed_after_a_failed_flush()
    size_bytes = storage.used_bytes()
    assert 0 < opened(storage)[1].rewritten_bytes < size_bytes * 0.7


def test_log_open_after_a_failed_flush_reports_it_until_the_mark_is_removed() -> None:
    storage, _ = killed_after_a_failed_flush()
    assert FLUSH_FAILED_NAME in storage.crash(power=True).names(), "the mark is durable"
    report = opened(storage)[1]
    assert "simulated flush error" in report.flush_failed
    assert opened(storage.crash(power=True))[1].flush_failed == report.flush_failed, (
        "a kill before the registration loses nothing"
    )
    forget_failed_flush(storage)
    assert FLUSH_FAILED_NAME not in storage.crash(power=True).names()
    assert opened(storage)[1].flush_failed == ""


def test_log_open_after_a_flush_failure_rewrites_records_despite_a_clean_stop() -> None:
    storage, written = killed_after_a_failed_flush()
    Log.open(storage, SMALL, clean=True)
    assert lose_power(storage) == written


def test_log_open_without_the_flush_failed_file_rewrites_unflushed_records() -> None:
    storage, written = killed_after_a_failed_flush()
    storage.remove(FLUSH_FAILED_NAME)
    opened(storage)
    assert lose_power(storage) == written


def test_log_open_on_an_unwritable_disk_raises_storage_error() -> None:
    storage, _ = killed_after_a_failed_flush()

    def fault(what: str) -> None:
        if what == "sync":
            raise StorageError("still broken")

    storage.fault = fault
    with pytest.raises(StorageError):
        opened(storage)
    storage.fault = None
    log, _ = opened(storage)
    assert lose_power(storage) == content(log)


OPERATIONS: dict[str, Callable[[Log], object]] = {
    "roll and flush": lambda log: (fill(log, 30, epoch=2, size=150), log.flush()),
    "cut": lambda log: (fill(log, 30, epoch=2, size=150), log.truncate_to(20), fill(log, 30, epoch=3, size=150), log.flush()),
    "retention": lambda log: (log.raise_high_watermark(30), log.drop_prefix(25), fill(log, 30, epoch=2, size=150), log.flush()),
    "reset": lambda log: (log.reset(1000), fill(log, 40, epoch=2, size=150), log.flush()),
    "close": lambda log: (fill(log, 30, epoch=2, size=150), log.close()),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_segment_index_is_never_durable_before_its_segment(operation: str) -> None:
    calls, done, end = 0, False, copies(killed_with_unflushed_segments)
    while not done:
        storage, _ = end()
        storage.fail_after(calls)  # while it is opened, too
        try:
            OPERATIONS[operation](opened(storage)[0])
            done = True
        except StorageError:
            pass
        proven = decoded_indexes(storage)
        left = storage.crash(power=True)
        for name, (size_bytes, data) in proven.items():
            assert bytes(left.files[name].data[:size_bytes]) == data, (calls, name)
        calls += every(3)


def decoded_indexes(storage: MemoryStorage) -> dict[str, tuple[int, bytes]]:
    """Of every segment that a visible index fits: name -> (size, bytes)."""
    found = {}
    for name in storage.names():
        summary = decode_index(storage.load(index_name(int(name[:20])))) if name.endswith(".log") else None
        data = bytes(storage.files[name].data)
        if summary is not None and summary.size_bytes == len(data):
            found[name] = (len(data), data)
    return found


def test_log_open_with_interval_flush_rewrites_records_committed_without_a_flush() -> None:
    log, _ = Log.open(MemoryStorage(), StreamConfig(flush=FlushPolicy.parse("interval:100")))
    fill(log, 10)
    log.flush()
    fill(log, 10)
    log.raise_high_watermark(log.newest_offset)
    log.checkpoint()
    storage = log.storage.crash(power=False)
    assert opened(storage)[1].rewritten_bytes > 0
    assert lose_power(storage) == content(log)


@pytest.mark.parametrize("kept", [0.0, 0.3, 1.0])
def test_log_open_with_an_empty_segment_after_a_power_cut_reports_a_torn_tail(kept: float) -> None:
    """The power failed between a roll and its flush: the new name is durable, the end of the segment before it is not [S1, S3]."""
    storage = MemoryStorage()
    log, _ = opened(storage)
    fill(log, 2)
    log.flush()
    while len(log.segments) == 1:
        fill(log, 1)
    (first, sealed), (_, empty) = [(name, file) for name, file in storage.files.items() if name.endswith(".log")]
    unsynced = len(sealed.data) - sealed.synced
    del sealed.data[sealed.synced + int(unsynced * kept) :], empty.data[:]
    again, report = opened(storage.crash(power=False))
    assert first in again.storage.names()
    assert again.log_end_offset >= log.durable_end_offset
    assert not report.must_leave_isr, report
    fill(again, 1)


def test_log_open_with_a_valid_batch_after_missing_bytes_reports_damage() -> None:
    storage = MemoryStorage()
    log, _ = opened(storage)
    while len(log.segments) == 1:
        fill(log, 1)
    sealed = next(file for name, file in storage.files.items() if name.endswith(".log"))
    del sealed.data[-1:]
    assert opened(storage.crash(power=False))[1].damage


def test_log_open_with_a_sealed_segment_that_is_too_short_reports_damage() -> None:
    storage = MemoryStorage()
    log, _ = opened(storage)
    while len(log.segments) == 1:
        fill(log, 1)
    log.flush()
    sealed, empty = [file for name, file in storage.files.items() if name.endswith(".log")]
    del sealed.data[-1:], empty.data[:]
    assert opened(storage.crash(power=False))[1].damage


def _replacing(storage: MemoryStorage, name: str, data: bytes) -> None:
    """``replace``, of a process that was killed before it had flushed the folder."""
    file = storage.create(name)
    file.append([data])
    file.sync()


def killed_before_its_checkpoint_was_durable(log_start_offset: int, base_offset: int = 0) -> MemoryStorage:
    log, _ = opened(MemoryStorage())
    if base_offset:
        log.reset(base_offset)
    fill(log, 40, size=50)
    log.flush()
    log.raise_high_watermark(base_offset + 10)
    log.checkpoint()
    _replacing(log.storage, CHECKPOINT_NAME, encode_checkpoint(Checkpoint(base_offset + 30, log_start_offset, 7)))
    return log.storage.crash(power=False)


@pytest.mark.parametrize("base_offset", [0, 500])
def test_log_open_with_a_sufficient_checkpoint_does_not_rewrite_the_checkpoint(base_offset: int) -> None:
    storage = killed_before_its_checkpoint_was_durable(base_offset, base_offset)
    replaced: list[str] = []
    storage.fault = lambda what: replaced.append(what)
    log, report = opened(storage)
    assert "replace" not in replaced
    assert (log.high_watermark, log.persisted_epoch) == (base_offset + 30, 7)
    assert report.rewritten_bytes > 0
    storage.fault = None
    written = content(log)
    assert lose_power(storage) == written, "also what the older checkpoint does not prove"


def test_log_open_restores_a_log_start_inside_a_segment() -> None:
    storage = killed_before_its_checkpoint_was_durable(20)
    assert opened(storage)[0].log_start_offset == 20
    assert opened(storage.crash(power=True))[0].log_start_offset == 20


def test_log_open_after_a_flush_failure_rewrites_the_checkpoint() -> None:
    storage = killed_before_its_checkpoint_was_durable(0)
    storage.replace(FLUSH_FAILED_NAME, b"why")
    opened(storage)
    assert opened(storage.crash(power=True))[0].high_watermark == 30
