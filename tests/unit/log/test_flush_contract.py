"""Test what a flush makes durable, in which order it flushes, where it runs, and how a log closes [D5, D26, S1, S2]."""

from __future__ import annotations

import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.log import small_files
from liftpy.core.log.flush import LONG_S, PROBES, SHORT_S, Flush, FlushScheduler, SealJob
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import InvariantError, LogClosedError, NoSpaceError, StorageError
from tests.unit.log.small_logs import a_log, add, filled, stored


def test_flush_covers_only_records_appended_before_it_began() -> None:
    log = a_log()
    add(log, 3)
    flush = log.begin_flush()
    assert flush is not None
    add(log, 2)
    assert log.flush() == 0, "one is under way, and proves nothing yet"
    flush.run()
    assert log.complete_flush(flush) == 3
    assert (log.flushed_end_offset, log.durable_end_offset) == (3, 3)
    assert log.flush() == 5


@pytest.mark.parametrize("mode", ["always", "none", "interval:50"])
def test_log_with_a_flush_policy_other_than_always_counts_appended_records_as_flushed_not_as_durable(mode: str) -> None:
    log = a_log(flush=FlushPolicy.parse(mode))
    add(log, 3)
    assert log.flushed_end_offset == (0 if mode == "always" else 3)
    assert log.durable_end_offset == 0


@pytest.mark.parametrize("kind", [StorageError, NoSpaceError])
def test_flush_that_fails_closes_the_log_and_leaves_a_flush_failed_file(kind: type[StorageError]) -> None:
    storage = MemoryStorage()
    log = a_log(storage)
    add(log)

    def fault(what: str) -> None:
        if what == "sync":
            raise kind("no")

    storage.fault = fault
    with pytest.raises(kind):
        log.flush()
    storage.fault = None
    assert log.closed
    assert storage.load(FLUSH_FAILED_NAME) == b"no"
    for use in (
        lambda: add(log),
        lambda: log.read(0, 1),
        log.checkpoint,
        lambda: log.truncate_to(0),
        lambda: log.begin_compaction(0),
    ):
        with pytest.raises(LogClosedError):
            use()


def test_write_that_fails_closes_the_log() -> None:
    storage = MemoryStorage(capacity_bytes=1000)
    log = a_log(storage)
    add(log)
    with pytest.raises(NoSpaceError):
        add(log, size=2000)
    with pytest.raises(LogClosedError):
        add(log)


def test_flush_syncs_files_then_the_directory_and_writes_indexes_last() -> None:
    calls: list[str] = []

    class File:
        def __init__(self, name: str) -> None:
            self.name = name

        def sync(self) -> None:
            calls.append(f"sync {self.name}")

    class Folder:
        def sync_folder(self) -> None:
            calls.append("names")

        def replace(self, name: str, data: bytes) -> None:
            calls.append(name)

    summary = filled().segments[0].summary()
    seals = (SealJob(File("one"), "1.index", summary), SealJob(File("two"), "2.index", summary))  # type: ignore[arg-type]
    Flush(Folder(), File("active"), seals, True, 5).run()  # type: ignore[arg-type]
    assert calls == ["sync one", "sync two", "sync active", "names", "1.index", "2.index"]
    calls.clear()
    Flush(Folder(), File("active"), (), True, 5).run()  # type: ignore[arg-type]
    assert calls == ["sync active", "names"]
    calls.clear()
    Flush(Folder(), File("active"), (), False, 5).run()  # type: ignore[arg-type]
    assert calls == ["sync active"]


def test_checkpoint_stores_a_high_watermark_of_durable_records_only() -> None:
    log = a_log(flush=FlushPolicy.parse("none"))
    add(log, 5)
    log.raise_high_watermark(4)
    log.checkpoint()
    assert stored(log).high_watermark == -1
    log.flush()
    log.checkpoint()
    assert stored(log).high_watermark == 4


def test_promised_epoch_never_falls_and_is_stored_in_the_checkpoint() -> None:
    log = a_log()
    for number, (epoch, held) in enumerate(((5, 5), (3, 5), (7, 7))):
        log.note_promise(epoch)
        add(log, 1)
        log.flush()
        log.raise_high_watermark(number)
        log.checkpoint()
        assert (stored(log).persisted_epoch, log.persisted_epoch) == (held, held)
    assert Log.open(log.storage, StreamConfig(), clean=True, promised_epoch=6)[0].persisted_epoch == 7
    assert Log.open(log.storage, StreamConfig(), clean=True, promised_epoch=8)[0].persisted_epoch == 8


def test_log_calls_on_advance_only_after_append_high_watermark_rise_and_truncation() -> None:
    log, woken = a_log(), []
    log.on_advance = lambda: woken.append(1)
    for step, wakes in (
        (lambda: add(log, 3), 1), (log.flush, 0), (lambda: log.raise_high_watermark(1), 1), (lambda: log.raise_high_watermark(1), 0),
        (lambda: log.raise_high_watermark(0), 0), (log.checkpoint, 0), (lambda: log.truncate_to(2), 1),
    ):  # fmt: skip
        woken.clear()
        step()
        assert len(woken) == wakes
    with pytest.raises(InvariantError):
        log.raise_high_watermark(99)


def test_flush_placement_moves_to_the_event_loop_after_short_flushes_and_back_when_slow() -> None:
    place = FlushScheduler()
    place.tried_out([SHORT_S] * (PROBES - 1))
    assert not place.on_loop
    place.record_thread_flush(SHORT_S * 2, 1)
    for _ in range(3):
        place.record_thread_flush(SHORT_S, 1)
    assert not place.on_loop, "a miss takes three points away"
    place.record_thread_flush(SHORT_S, 1)
    assert place.on_loop
    place.record_loop_flush(LONG_S - 0.001)
    assert place.on_loop
    place.record_loop_flush(LONG_S)
    assert not place.on_loop


def test_log_close_flushes_the_log_and_stores_checkpoint_and_epochs() -> None:
    log = filled()
    add(log, 2, epoch=3)
    log.close()
    again, report = Log.open(log.storage, StreamConfig(), clean=True)
    assert (again.high_watermark, again.log_end_offset) == (17, 20)
    assert report.checkpoint_found
    assert log.storage.load(small_files.EPOCHS_NAME) is not None
