"""Test what a flush makes durable, in which order it flushes, where it runs, and how a log closes [D5, D26, S1, S2]."""

from __future__ import annotations

import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.core.log import small_files
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import LogClosedError, NoSpaceError, StorageError
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


def test_checkpoint_stores_a_high_watermark_of_durable_records_only() -> None:
    log = a_log(flush=FlushPolicy.parse("none"))
    add(log, 5)
    log.raise_high_watermark(4)
    log.checkpoint()
    assert stored(log).high_watermark == -1
    log.flush()
    log.checkpoint()
    assert stored(log).high_watermark == 4


def test_log_close_flushes_the_log_and_stores_checkpoint_and_epochs() -> None:
    log = filled()
    add(log, 2, epoch=3)
    log.close()
    again, report = Log.open(log.storage, StreamConfig(), clean=True)
    assert (again.high_watermark, again.log_end_offset) == (17, 20)
    assert report.checkpoint_found
    assert log.storage.load(small_files.EPOCHS_NAME) is not None
