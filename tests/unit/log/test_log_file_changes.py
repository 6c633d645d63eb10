"""Test that truncation, compaction and close wait for a running flush [S4], and that released files are closed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryFile, MemoryStorage
from liftpy.core.wire.batch import parse_batch, split_batches
from liftpy.errors import LogClosedError, StorageError
from tests.batches import build_batch
from tests.unit.log.small_logs import S, a_log, add, filled
from tests.unit.log.test_compaction_contract import keyed

CHANGES: dict[str, Callable[[Log], object]] = {
    "cut": lambda log: log.truncate_to(2),
    "a fresh start": lambda log: log.reset(40),
    "retention": lambda log: log.drop_prefix(6),
    "a clean close": lambda log: log.close(),
}


def with_a_flush() -> tuple[Log, list[str]]:
    """A log whose flush runs elsewhere; what is waited for and what the storage is told, in order."""
    storage = MemoryStorage()
    log = filled(storage=storage)
    add(log, epoch=2)
    flush, told = log.begin_flush(), []
    assert flush is not None
    flush.waiter = lambda: told.append("waited")
    storage.fault = told.append
    return log, told


@pytest.mark.parametrize("what", CHANGES)
def test_log_truncation_reset_and_retention_wait_for_a_running_flush(what: str) -> None:
    log, told = with_a_flush()
    CHANGES[what](log)
    assert told.count("waited") == 1
    behind = told[told.index("waited") :]
    assert set(told[: told.index("waited")]) <= {"replace"}, "what is only written beside it does not wait"
    assert {"cut": "truncate", "a fresh start": "remove", "retention": "remove", "a clean close": "replace"}[what] in behind


@pytest.mark.parametrize("what", CHANGES)
def test_log_truncation_during_a_flush_that_cannot_be_awaited_raises_storage_error(what: str) -> None:
    log, _ = with_a_flush()
    flush = log._flush
    assert flush is not None
    flush.waiter = None
    with pytest.raises(StorageError, match="log cannot be truncated during"):
        CHANGES[what](log)
    assert log.segments[-1].next_offset == 19


def test_log_unclean_close_does_not_wait_for_the_running_flush() -> None:
    log, told = with_a_flush()
    log.close(clean=False)
    log.close()
    assert told == []
    assert log.closed == "closed"
    for use in (
        lambda: log.read(0, 1),
        log.checkpoint,
        lambda: log.truncate_to(3),
        lambda: log.drop_prefix(3),
        lambda: log.offset_for_timestamp(0),
    ):
        with pytest.raises(LogClosedError, match="The log is closed: closed"):
            use()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[MemoryFile]:
    closed: list[MemoryFile] = []
    monkeypatch.setattr(MemoryFile, "close", lambda file: closed.append(file))
    return closed


def test_log_truncation_reset_and_retention_close_removed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled()
    files = [segment.file for segment in log.segments]
    closed = counted(monkeypatch)
    log.drop_prefix(6)
    assert closed == files[:1]
    log.truncate_to(8)
    assert closed == [files[0], files[2]]
    log.reset(30)
    assert closed == [files[0], files[2], files[1]]
    log.close()
    assert closed[3:] == [segment.file for segment in log.segments]


# ---- fillers ---------------------------------------------------------------------------------------------------------------


def test_compaction_filler_batch_covers_one_leader_epoch_only() -> None:
    log = keyed([(b"a", b"1")], [(b"a", b"2")], [(b"a", b"3")], [(b"a", b"4")], epochs=(1, 1, 2, 3))
    compaction = log.begin_compaction(0)
    assert compaction is not None
    compaction.run()
    log.complete_compaction(compaction)
    headers = [batch.header for chunk in log.read(0, 1 << 20).chunks for batch in split_batches(chunk)]
    assert [(h.base_offset, h.next_offset, h.leader_epoch, h.record_count) for h in headers] == [
        (0, 2, 1, 0), (2, 3, 2, 0), (3, 4, 3, 1),
    ]  # fmt: skip
    again = a_log(log.storage, compaction=True)  # type: ignore[arg-type]
    assert again.epochs.entries == log.epochs.entries == ((1, 0), (2, 2), (3, 3))


def test_compaction_batch_that_lost_its_first_and_last_record_has_its_old_offset_range() -> None:
    log = keyed([(b"z", b"0")], [(b"a", b"1"), (b"k", b"stays"), (b"a", b"2")], [(b"a", b"3")])
    compaction = log.begin_compaction(0)
    assert compaction is not None
    compaction.run()
    log.complete_compaction(compaction)
    found = parse_batch(log.read(1, 1).chunks[0])
    assert (found.offsets().tolist(), found.values(), found.keys()) == ([2], [b"stays"], [b"k"])
    assert (found.base_offset, found.next_offset, found.timestamp_ns, found.leader_epoch) == (1, 4, S, 1)
    assert (log.size_bytes, log.log_end_offset) == (sum(s.file.size_bytes for s in log.segments), 5)


def test_compaction_leaves_times_headers_and_replies_of_remaining_records_unchanged() -> None:
    log = a_log(compaction=True)
    log.append(
        build_batch(
            [b"1", b"2", b"3"], keys=[b"a", b"k", b"a"], base_offset=0, leader_epoch=1, timestamp_ns=50, timestamps_ns=[7, 8, 9],
            headers=[None, (("h", b"x"),), None], subjects=["s", "t", "s"], replies=[None, "_INBOX.r", None], producer_id=5,
            producer_epoch=6, base_sequence=7,
        )
    )  # fmt: skip
    log.roll()
    add(log, 1, keys=[b"z"])
    log.roll()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    compaction = log.begin_compaction(0)
    assert compaction is not None
    compaction.run()
    assert log.complete_compaction(compaction) == 1
    found = parse_batch(log.read(0, 1).chunks[0])
    assert [tuple(record) for record in found.records()] == [
        (1, 8, b"k", b"2", (("h", b"x"),), "t", "_INBOX.r", 1), (2, 9, b"a", b"3", (), "s", None, 1),
    ]  # fmt: skip
    header = found.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.timestamp_ns) == (5, 6, 7, 50)
    plain = parse_batch(log.read(3, 1).chunks[0])
    assert plain.columns.timestamps_ns is None
