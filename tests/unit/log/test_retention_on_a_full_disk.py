"""Test the deletion of old segments while the disk has no room for a checkpoint."""

from __future__ import annotations

from contextlib import suppress

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.segment import index_name, log_name
from liftpy.core.log.small_files import CHECKPOINT_NAME, EPOCHS_NAME, decode_checkpoint
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import HEADER_SIZE_BYTES
from liftpy.errors import LogClosedError, NoSpaceError, StorageError
from tests.each import each
from tests.unit.log.log_model import batch, content, fill, reopened

SETTINGS = StreamConfig(segment_bytes=4096, retention_records=30)


def full_log(*, append: bool = True, epoch: int = 1) -> tuple[Log, MemoryStorage]:
    """A log of several segments of 10 records each, all committed. Its disk is full, and an append has closed it."""
    storage = MemoryStorage()
    log = Log.open(storage, SETTINGS)[0]
    for _ in range(9):
        fill(log, 2, count=5, epoch=epoch)
        log.roll()
    fill(log, 2, count=5, epoch=epoch)
    log.flush()
    log.raise_high_watermark(49)
    log.checkpoint()
    log.raise_high_watermark(99)
    storage.capacity_bytes = storage.used_bytes()
    if append:
        with pytest.raises(NoSpaceError):
            log.append(batch(log.log_end_offset, epoch=epoch))
        assert log.closed
    return log, storage


def stored_start(storage: MemoryStorage) -> int:
    checkpoint = decode_checkpoint(storage.load(CHECKPOINT_NAME))
    assert checkpoint is not None
    return checkpoint.log_start_offset


@each("power", [False, True])
def test_log_that_a_full_disk_has_closed_deletes_old_segments_and_stores_its_start(power: bool) -> None:
    log, storage = full_log()
    used_bytes = storage.used_bytes()
    assert log.apply_retention(0)
    assert (log.log_start_offset, log.closed != "", log.is_full) == (70, True, True)
    assert storage.used_bytes() < used_bytes / 2
    assert stored_start(storage) == 70, "the first segment made room for the checkpoint"
    again = reopened(storage.crash(power=power), SETTINGS)
    assert (again.log_start_offset, again.high_watermark) == (70, 99)
    assert [offset for offset, _ in content(again)] == list(range(70, 100))
    with pytest.raises(LogClosedError):
        log.append(batch(100))


@each("power", [False, True])
@each("append", [False, True])
def test_log_open_after_a_crash_during_retention_on_a_full_disk_has_every_record_of_its_start(
    power: bool, append: bool
) -> None:
    """[S1, D26] The start that a replica has shown never goes back."""
    calls = 0
    while True:
        log, storage = full_log(append=append)
        expected, last = dict(content(reopened(storage.crash(power=False), SETTINGS))), storage.calls + calls

        def fault(what: str, storage: MemoryStorage = storage, last: int = last) -> None:
            if storage.calls > last:
                raise StorageError("crashed")
            if what == "replace":
                raise NoSpaceError("full")  # at every attempt

        storage.fault = fault
        try:
            done = log.apply_retention(0)
        except StorageError:
            done = False
        shown = log.log_start_offset
        survivor, report = Log.open(storage.crash(power=power), SETTINGS)
        assert survivor.log_start_offset >= shown, calls
        assert dict(content(survivor)) == {o: v for o, v in expected.items() if o >= survivor.log_start_offset}
        assert survivor.log_end_offset == 100
        assert not report.must_leave_isr
        if done:
            break
        calls += 1
    assert (shown, calls > 20) == (70, True)


def test_log_start_that_cannot_be_stored_stays_and_moves_later() -> None:
    log, storage = full_log(append=False)
    log.asked_start = 5  # inside the oldest segment, so no segment can be deleted
    log.config = StreamConfig(segment_bytes=4096)
    with pytest.raises(NoSpaceError):
        log.apply_retention(0)
    assert (log.log_start_offset, log.may_give_up) == (0, True)
    storage.capacity_bytes *= 2
    assert log.apply_retention(0)
    assert (log.log_start_offset, stored_start(storage)) == (5, 5)


@each("flushed", [True, False])
def test_log_on_a_full_disk_with_an_unstored_epoch_keeps_the_segment_before_unflushed_records(flushed: bool) -> None:
    """After a power cut, an empty log would not know the epoch before its start [C9, R6]. Flushed records name it."""
    storage = MemoryStorage()
    log = Log.open(storage, StreamConfig(retention_records=10))[0]
    fill(log, 2, count=5)
    log.flush()
    log.roll()
    fill(log, 2, count=5, epoch=2)
    if flushed:
        log.flush()
    log.raise_high_watermark(19)
    assert EPOCHS_NAME not in storage.names()
    storage.capacity_bytes = storage.used_bytes()
    with pytest.raises(NoSpaceError):
        log.append(batch(20, epoch=2))

    def fault(what: str) -> None:
        if what == "replace":
            raise NoSpaceError("full")

    storage.fault = fault
    if flushed:
        assert log.apply_retention(0)
    else:
        with pytest.raises(NoSpaceError):
            log.apply_retention(0)
    assert log.log_start_offset == (10 if flushed else 0)


@each("full", [True, False])
@each("power", [True, False])
def test_log_start_that_only_the_first_file_proves_stays_after_damage_of_this_file(full: bool, power: bool) -> None:
    """[D26] Recovery quarantines the file with all later ones, so no segment is left."""
    log, storage = full_log()

    def fault(what: str) -> None:
        if what == "replace":
            raise NoSpaceError("full")

    storage.fault = fault
    assert log.apply_retention(0)
    assert (log.log_start_offset, stored_start(storage)) == (70, 0)
    damaged = storage.crash(power=power)
    damaged.remove(index_name(70))
    damaged.sync_folder()
    damaged.files[log_name(70)].data[HEADER_SIZE_BYTES] ^= 1
    damaged.fault = fault if full else None
    opened, report = Log.open(damaged, SETTINGS)
    assert report.must_leave_isr
    for again in (opened, reopened(damaged.crash(power=power), SETTINGS)):
        assert (again.log_start_offset, again.log_end_offset, again.high_watermark) == (70, 70, 69)


@each("calls", range(30))
def test_log_open_interrupted_after_damage_of_the_first_file_keeps_the_start(calls: int) -> None:
    log, storage = full_log()

    def fault(what: str) -> None:
        if what == "replace":
            raise NoSpaceError("full")

    storage.fault = fault
    assert log.apply_retention(0)
    damaged = storage.crash()
    damaged.remove(index_name(70))
    damaged.sync_folder()
    damaged.files[log_name(70)].data[HEADER_SIZE_BYTES] ^= 1
    damaged.fail_after(calls)
    with suppress(StorageError):
        Log.open(damaged, SETTINGS)
    assert reopened(damaged.crash(), SETTINGS).log_start_offset == 70


def test_log_start_that_moved_before_an_error_reaches_the_readers() -> None:
    log, storage = full_log(append=False)
    attempts, starts = [NoSpaceError("full"), StorageError("I/O error")], []
    log.on_advance = lambda: starts.append(log.log_start_offset)

    def fault(what: str) -> None:
        if what == "replace":
            raise attempts.pop(0)

    storage.fault = fault
    with pytest.raises(StorageError, match="I/O error"):
        log.apply_retention(0)
    assert (log.log_start_offset, starts) == (10, [10])


def test_log_that_another_error_has_closed_deletes_nothing() -> None:
    log, storage = full_log(append=False)
    storage.capacity_bytes *= 2
    fill(log, 1)
    storage.fail_after(0)
    with pytest.raises(StorageError):
        log.flush()
    storage.fault = None
    with pytest.raises(LogClosedError):
        log.apply_retention(0)
    assert (log.log_start_offset, log.is_full) == (0, False)
