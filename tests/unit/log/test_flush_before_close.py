"""Test the flush of a log that a full disk has stopped, before its process ends."""

from __future__ import annotations

import pytest

from liftpy.config import FlushMode, FlushPolicy, StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.recovery import FLUSH_FAILED_NAME
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import NoSpaceError, StorageError
from tests.unit.log.log_model import batch, content, fill, reopened

LAZY = StreamConfig(segment_bytes=4096, flush=FlushPolicy(FlushMode.NONE))


def stopped_log() -> tuple[Log, MemoryStorage]:
    """A log of several unflushed segments. Its disk is full, and an append has closed it."""
    storage = MemoryStorage()
    log = Log.open(storage, LAZY)[0]
    for _ in range(3):
        fill(log, 2)
        log.roll()
    fill(log, 2)
    storage.capacity_bytes = storage.used_bytes()
    with pytest.raises(NoSpaceError):
        log.append(batch(log.log_end_offset))
    return log, storage


def test_log_that_a_full_disk_has_closed_keeps_every_record_after_its_flush_and_a_power_cut() -> None:
    log, storage = stopped_log()
    assert len(content(reopened(storage.crash(), LAZY))) < log.log_end_offset
    assert log.flush_before_close()
    log.close(clean=False)
    assert [offset for offset, _ in content(reopened(storage.crash(), LAZY))] == list(range(24))


@pytest.mark.parametrize("call", ["sync", "sync_folder"])
def test_log_with_a_failed_flush_before_the_close_is_not_complete(call: str) -> None:
    log, storage = stopped_log()
    storage.capacity_bytes *= 2

    def fault(what: str) -> None:
        if what == call:
            raise StorageError("I/O error")

    storage.fault = fault
    assert not log.flush_before_close()
    assert FLUSH_FAILED_NAME in storage.names()


def test_log_with_an_earlier_failed_flush_is_not_complete_although_the_next_flush_succeeds() -> None:
    """[S4] The kernel may have dropped the pages that it could not write."""
    storage = MemoryStorage()
    log = Log.open(storage, LAZY)[0]
    fill(log, 2)

    def fault(what: str) -> None:
        if what == "sync":
            raise NoSpaceError("full")

    storage.fault = fault
    with pytest.raises(NoSpaceError):
        log.flush()
    storage.fault = None
    assert log.is_full
    assert not log.flush_before_close()


def test_log_that_another_error_has_closed_is_not_complete() -> None:
    log = Log.open(MemoryStorage(), LAZY)[0]
    log.close()
    assert not log.flush_before_close()
