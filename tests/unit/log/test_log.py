"""Test the log against a list, with truncation at every byte, a flip of every bit and a crash at every call."""

from __future__ import annotations

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import StreamConfig
from liftpy.core.log.log import Log
from liftpy.core.log.small_files import EPOCHS_NAME, decode_epochs, encode_epochs
from liftpy.core.log.storage import MemoryFile, MemoryStorage
from liftpy.core.wire.batch import parse_batch, split_batches
from liftpy.errors import InvariantError, NoSpaceError, StorageError, UnknownFormatError
from tests.long import every, examples, sampled
from tests.unit.log.log_model import SMALL, batch, content, fill, reopened


def _log(storage: MemoryStorage | None = None, config: StreamConfig = SMALL) -> Log:
    return Log.open(storage or MemoryStorage(), config)[0]


def test_log_append_on_a_full_disk_raises_no_space_and_earlier_batches_stay_readable() -> None:
    storage = MemoryStorage(capacity_bytes=600)
    log = _log(storage)
    with pytest.raises(NoSpaceError):
        fill(log, 10)
    end = log.log_end_offset
    assert [o for o, _ in content(reopened(storage.crash(power=False)))] == list(range(end))


def test_log_append_rejects_wrong_offsets_and_lower_epochs() -> None:
    log = _log()
    log.append(batch(0, 2, epoch=3))
    for wrong in (batch(1, epoch=3), batch(3, epoch=3), batch(2, epoch=2)):
        with pytest.raises(InvariantError, match=r"D1[45]"):
            log.append(wrong)
    assert log.log_end_offset == 2


def test_log_flush_started_before_a_truncation_does_not_cover_later_appends() -> None:
    log = _log()
    fill(log, 3)
    flush = log.begin_flush()
    assert flush is not None
    flush.run()
    flush.waiter = lambda: None
    log.truncate_to(3)
    fill(log, 4, epoch=2)
    assert log.complete_flush(flush) == 3


def test_log_epoch_cache_after_any_operation_equals_a_scan_of_the_batches() -> None:
    storage = MemoryStorage()
    log = _log(storage)
    for epoch in (1, 4, 9):
        fill(log, 20, epoch=epoch)
    expected = ((1, 0), (4, 60), (9, 120))
    assert log.epochs.entries == expected
    log.flush()
    assert reopened(storage.crash()).epochs.entries == expected
    assert log.epochs.end_offset_for(5, log.log_end_offset) == (4, 120)
    log.truncate_to(60)
    assert log.epochs.entries == expected[:1]


# ---- histories against a list ----------------------------------------------------------------------------------------
_steps = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 5), st.integers(0, 600)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("truncate"), st.integers(0, 100)),
    st.tuples(st.just("commit"), st.integers(0, 100)),
    st.tuples(st.just("drop"), st.integers(0, 100)),
    st.tuples(st.just("epoch")),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("power cut")),
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(_steps, max_size=40))
def test_log_after_random_operations_equals_a_list_model(steps: list[tuple]) -> None:
    storage = MemoryStorage()
    log = _log(storage)
    model: list[tuple[int, int, bytes]] = []  # (first offset, end offset, batch)
    epoch, flushed, start = 1, 0, 0
    for step in steps:
        end = log.log_end_offset
        match step:
            case ("append", count, size):
                made = batch(end, count, epoch, size)
                log.append(made)
                model.append((end, end + count, made))
            case ("flush",):
                flushed = log.flush()
            case ("truncate", percent):
                to = log.high_watermark + 1 + (end - log.high_watermark - 1) * percent // 100
                log.truncate_to(to)
                model = [m for m in model if m[1] <= to]
                flushed = min(flushed, log.log_end_offset)
            case ("commit", percent):
                log.raise_high_watermark(start - 1 + (end - start) * percent // 100)
            case ("drop", percent):
                log.drop_prefix(start + (end - start) * percent // 100)
                start = log.log_start_offset
            case ("epoch",):
                epoch += 1
            case ("reopen",):
                log.close()
                log = reopened(storage)
                flushed = log.log_end_offset
            case ("power cut",):
                storage = storage.crash()
                log = reopened(storage)
                assert log.log_end_offset >= flushed
                model = [m for m in model if m[1] <= log.log_end_offset]
        expected = [(o, v) for first, _, made in model for o, v in _rows(first, made) if o >= start]
        assert content(log) == expected
        assert log.high_watermark <= log.newest_offset
        assert log.log_start_offset == start


def _rows(first: int, made: bytes) -> list[tuple[int, bytes]]:

    return [(first + i, v) for i, v in enumerate(parse_batch(made).values()) if v is not None]


# ---- damage ----------------------------------------------------------------------------------------------------------
def _written(size: int = 180) -> tuple[MemoryStorage, list[tuple[int, bytes | None]]]:
    storage = MemoryStorage()
    log = _log(storage)
    fill(log, 6, size=size)
    log.roll()
    fill(log, 6, epoch=2, size=size)
    log.raise_high_watermark(20)
    log.flush()
    log.checkpoint()
    assert len(log.segments) >= 2
    return storage, content(log)


def _with(storage: MemoryStorage, name: str, data: bytes) -> MemoryStorage:
    after = storage.crash()
    after.files[name] = MemoryFile(after, bytearray(data))
    return after


def test_log_open_after_a_file_truncation_at_any_byte_returns_a_prefix() -> None:
    storage, expected = _written()
    last = max(n for n in storage.files if n.endswith(".log"))
    for name, file in storage.files.items():
        for size in sampled(range(len(file.data)), 5):
            log, report = Log.open(_with(storage, name, bytes(file.data[:size])), SMALL)
            got = content(log)
            assert got == expected[: len(got)], (name, size)
            assert log.high_watermark <= log.newest_offset
            if not name.endswith(".log"):
                assert len(got) == len(expected), (name, size)
            elif len(got) < len(expected):
                torn = name == last and not report.damage
                assert torn or report.must_leave_isr, (name, size)
                assert report.lost_committed == (len(got) <= 20)


def test_log_open_after_any_flipped_bit_returns_a_prefix_or_reports_damage() -> None:
    storage, expected = _written(size=3)
    assert {n.rpartition(".")[2] for n in storage.names()} == {"log", "index", "high-watermark", "leader-epochs"}
    for name, file in storage.files.items():
        for bit in sampled(range(len(file.data) * 8), 7):
            data = bytearray(file.data)
            data[bit // 8] ^= 1 << (bit % 8)
            log, report = Log.open(_with(storage, name, bytes(data)), SMALL)
            try:
                got = content(log)
            except StorageError:
                continue  # damage that a read finds is an error, never an answer
            assert got == expected[: len(got)], (name, bit)
            if len(got) < len(expected):
                assert report.must_leave_isr or report.cut_bytes, (name, bit)


def _retire(log: Log) -> None:
    log.config = StreamConfig(segment_bytes=4096, retention_age_s=1.0)
    log.apply_retention(10**15)


OPERATIONS = {
    "append and roll": lambda log: (fill(log, 20, epoch=2, size=150), log.flush()),
    "truncate": lambda log: log.truncate_to(22),
    "truncate over segments": lambda log: log.truncate_to(23),
    "drop prefix": lambda log: log.drop_prefix(21),
    "retention of a quiet stream": lambda log: (log.raise_high_watermark(log.newest_offset), _retire(log)),
    "reset": lambda log: log.reset(1000),
    "checkpoint": lambda log: (log.raise_high_watermark(30), log.checkpoint()),
}


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_log_open_after_a_crash_at_any_storage_call_returns_all_flushed_records(operation: str, power: bool) -> None:
    """[S7]"""
    calls = 0
    while True:
        storage, expected = _written()
        log = reopened(storage)
        storage.fail_after(calls)
        try:
            OPERATIONS[operation](log)
            done = True
        except StorageError:
            done = False
        after = storage.crash(power=power)
        survivor, report = Log.open(after, SMALL)
        got = content(survivor)
        if operation == "reset" and survivor.log_start_offset == 1000:
            assert got == []
        else:
            assert got[: 21 - survivor.log_start_offset] == expected[survivor.log_start_offset : 21], (calls, report)
            known = dict(content(log)) if not log.closed and operation == "append and roll" else {}
            assert all(dict(expected).get(o, known.get(o, v)) == v for o, v in got)
        assert not report.damage, (calls, report)
        assert not report.lost_committed
        fill(survivor, 1, epoch=5)
        survivor.flush()
        assert content(reopened(after.crash())) == content(survivor)
        if done:
            break
        calls += every(3)
    assert calls > 0


# ---- other ways through a log ----------------------------------------------------------------------------------------


def test_log_emptied_by_retention_still_reports_its_last_epoch() -> None:
    """The last epoch decides its rank in an election [C9]."""
    storage = MemoryStorage()
    log = _log(storage, StreamConfig(retention_age_s=1.0))
    fill(log, 2, epoch=3)
    fill(log, 1, epoch=5)
    log.flush()
    log.raise_high_watermark(8)
    assert log.epochs.position_epoch == 5
    log.apply_retention(10**15)
    for survivor in (log, reopened(storage.crash(power=True))):
        assert (survivor.log_start_offset, survivor.epochs.entries, survivor.epochs.latest_epoch) == (9, (), 0)
        assert survivor.epochs.position_epoch == 5
    log.checkpoint()
    fill(log, 1, epoch=7)
    assert (log.epochs.position_epoch, log.epochs.before_start) == (7, 5)
    log.truncate_to(9)
    assert log.epochs.position_epoch == 5
    log.reset(100)
    assert log.epochs.position_epoch == 0, "of what others have dropped nothing is known"
    assert reopened(storage.crash(power=True)).epochs.position_epoch == 0


def test_log_drop_prefix_retains_the_epoch_entry_before_the_log_start() -> None:
    log = _log()
    fill(log, 2, epoch=3)
    fill(log, 2, epoch=5)
    log.flush()
    log.raise_high_watermark(11)
    for start, before in ((3, 3), (6, 3), (9, 5)):
        log.drop_prefix(start)
        assert (log.log_start_offset, log.epochs.before_start, log.epochs.position_epoch) == (start, before, 5)


def test_log_append_batches_writes_only_the_listed_batches_of_a_response() -> None:
    log, first, second = _log(), batch(0, 2), batch(2, 2)
    received = split_batches(first + second)
    log.append_batches(memoryview(first + second), received[:1])
    assert (log.log_end_offset, log.size_bytes) == (2, len(first))
    with pytest.raises(InvariantError, match="D23"):
        log.append_batches(memoryview(second)[:-1], received[1:])
    log.append_batches(memoryview(second), received[1:])
    assert [o for o, _ in content(log)] == [0, 1, 2, 3]


def test_log_open_corrects_the_leader_epochs_file_from_the_batches() -> None:
    storage, _ = _written()
    assert decode_epochs(storage.load(EPOCHS_NAME)) == ((1, 0), (2, 18))
    storage.replace(EPOCHS_NAME, encode_epochs([(1, 0), (7, 5)]))
    log = reopened(storage)
    assert log.epochs.entries == ((1, 0), (2, 18))
    log.checkpoint()
    assert decode_epochs(storage.load(EPOCHS_NAME)) == ((1, 0), (2, 18))


def test_log_with_another_format_version_is_rejected_and_not_modified() -> None:
    """[S11]"""
    storage, _ = _written()
    name = max(n for n in storage.files if n.endswith(".log"))
    data = storage.files[name].data
    size = int.from_bytes(data[8:12], "little")
    data[6] = 2
    data[:4] = crc32c.crc32c(bytes(data[4:size])).to_bytes(4, "little")
    before = {n: bytes(f.data) for n, f in storage.files.items()}
    with pytest.raises(UnknownFormatError, match="version 2"):
        Log.open(storage, SMALL)
    assert {n: bytes(f.data) for n, f in storage.files.items()} == before
