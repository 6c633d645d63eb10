"""What a log promises at each step, looked at where it is kept: on the storage, in its answers, in the order of its calls.

Shows D5, D7, D13, D26, S1 to S7.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from liftpy.config import FlushPolicy, StreamConfig
from liftpy.errors import CorruptionError, InvariantError, LogClosedError, NoSpaceError, StorageError
from liftpy.log import arrow, proving, small_files
from liftpy.log.compaction import Compaction
from liftpy.log.epochs import EpochCache
from liftpy.log.flush import Flush, SealJob
from liftpy.log.flush_place import LONG_S, PROBES, SHORT_S, FlushPlace
from liftpy.log.horizon import HORIZON_NAME, NEVER, CompactionHorizon, Horizon, decode_horizon
from liftpy.log.log import Log
from liftpy.log.memory import MemoryStorage
from liftpy.log.proving import FLUSH_FAILED_NAME
from liftpy.log.reading import first_offset_at
from liftpy.log.rechecks import EVERY_NS, MAX_ASKERS, Recheck, Rechecks
from liftpy.log.recovery import recover
from liftpy.log.retention import held_start, retained_start
from liftpy.log.scrub import Scan, freshly_sealed, scan_of
from liftpy.log.segment import INDEX_INTERVAL_BYTES, index_name, log_name
from liftpy.log.set_aside import DAMAGED, DAMAGED_KEPT, drop_set_aside, set_aside
from liftpy.log.small_files import CHECKPOINT_NAME, Checkpoint, decode_checkpoint
from liftpy.wire.batch import RecordBatch, build_batch, parse_batch, split_batches

S = 1_000_000_000


def a_log(storage: MemoryStorage | None = None, **config: Any) -> Log:
    return Log.open(storage if storage is not None else MemoryStorage(), StreamConfig(**config), clean=True)[0]


def add(log: Log, count: int = 1, *, epoch: int = 1, size: int = 100, timestamp_ns: int = 0, **columns: Any) -> None:
    values: list[bytes | None] = [bytes([65 + (log.log_end_offset + i) % 26]) * size for i in range(count)]
    log.append(build_batch(values, base_offset=log.log_end_offset, leader_epoch=epoch, timestamp_ns=timestamp_ns, **columns))


def filled(batches: int = 9, *, roll_every: int = 3, storage: MemoryStorage | None = None, **config: Any) -> Log:
    """Batches of two records, epoch 1 up to the middle and 2 from there on, all flushed and committed."""
    log = a_log(storage, **config)
    for number in range(batches):
        if number and number % roll_every == 0:
            log.roll()
        add(log, 2, epoch=1 + (number >= batches // 2), timestamp_ns=number * S)
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def stored(log: Log) -> Checkpoint:
    found = decode_checkpoint(log.storage.load(CHECKPOINT_NAME))
    return found or Checkpoint()


def offsets_of(log: Log, start: int = 0) -> list[int]:
    found, at = [], start
    while at < log.high_watermark + 1:
        result = log.read(at, 1 << 20)
        found += [offset for chunk in result.chunks for batch in split_batches(chunk) for offset in batch.offsets().tolist()]
        at = result.next_offset
    return found


# ---- flushes and what they prove ---------------------------------------------------------------------------------------------
def test_a_flush_proves_what_had_been_appended_when_it_began() -> None:
    log = a_log()
    add(log, 3)
    flush = log.begin_flush()
    assert flush is not None
    add(log, 2)
    flush.run()
    assert log.complete_flush(flush) == 3
    assert (log.flushed_end_offset, log.durable_end_offset) == (3, 3)
    assert log.flush() == 5


@pytest.mark.parametrize("mode", ["always", "none", "interval:50"])
def test_what_counts_as_flushed_is_the_streams_policy_and_what_is_durable_is_not(mode: str) -> None:
    log = a_log(flush=FlushPolicy.parse(mode))
    add(log, 3)
    assert log.flushed_end_offset == (0 if mode == "always" else 3)
    assert log.durable_end_offset == 0


@pytest.mark.parametrize("kind", [StorageError, NoSpaceError])
def test_a_flush_that_failed_closes_the_log_and_leaves_its_mark(kind: type[StorageError]) -> None:
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
        lambda: log.cut_to(0),
        lambda: log.begin_compaction(0),
    ):
        with pytest.raises(LogClosedError):
            use()


def test_a_write_that_failed_closes_the_log() -> None:
    storage = MemoryStorage(capacity_bytes=1000)
    log = a_log(storage)
    add(log)
    with pytest.raises(NoSpaceError):
        add(log, size=2000)
    with pytest.raises(LogClosedError):
        add(log)


def test_a_flush_syncs_files_then_names_and_writes_indexes_last() -> None:
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


def test_the_stored_hw_is_durable_records_alone() -> None:
    log = a_log(flush=FlushPolicy.parse("none"))
    add(log, 5)
    log.raise_high_watermark(4)
    log.checkpoint()
    assert stored(log).high_watermark == -1
    log.flush()
    log.checkpoint()
    assert stored(log).high_watermark == 4


def test_a_promise_never_falls_and_goes_with_the_next_checkpoint() -> None:
    log = a_log()
    for number, (epoch, held) in enumerate(((5, 5), (3, 5), (7, 7))):
        log.promised(epoch)
        add(log, 1)
        log.flush()
        log.raise_high_watermark(number)
        log.checkpoint()
        assert (stored(log).persisted_epoch, log.persisted_epoch) == (held, held)
    assert Log.open(log.storage, StreamConfig(), clean=True, promised_epoch=6)[0].persisted_epoch == 7
    assert Log.open(log.storage, StreamConfig(), clean=True, promised_epoch=8)[0].persisted_epoch == 8


def test_readers_are_woken_by_appends_hw_and_cuts_and_by_nothing_else() -> None:
    log, woken = a_log(), []
    log.on_advance = lambda: woken.append(1)
    for step, wakes in (
        (lambda: add(log, 3), 1), (log.flush, 0), (lambda: log.raise_high_watermark(1), 1), (lambda: log.raise_high_watermark(1), 0),
        (lambda: log.raise_high_watermark(0), 0), (log.checkpoint, 0), (lambda: log.cut_to(2), 1),
    ):  # fmt: skip
        woken.clear()
        step()
        assert len(woken) == wakes
    with pytest.raises(InvariantError):
        log.raise_high_watermark(99)


# ---- rolling -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("over", [0, 1])
def test_a_segment_is_as_large_as_the_setting(over: int) -> None:
    size = len(build_batch([b"x" * 1000]))
    log = a_log(segment_bytes=4 * size - over)
    for _ in range(8):
        add(log, size=1000)
    assert [segment.size_bytes // size for segment in log.segments] == ([4, 4] if not over else [3, 3, 2])


@pytest.mark.parametrize(("age_ns", "rolled"), [(59 * S, False), (60 * S, True)])
def test_a_segment_is_as_old_as_the_setting(age_ns: int, rolled: bool) -> None:
    log = a_log(segment_age_s=60.0)
    log.append(build_batch([b"a"], base_offset=0, leader_epoch=1), 1000 * S)
    log.append(build_batch([b"b"], base_offset=1, leader_epoch=1), 1000 * S + age_ns)
    assert len(log.segments) == 1 + rolled


# ---- cuts --------------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("end", [0, 2, 6, 7, 11, 12, 18])
def test_a_cut_is_whole_in_everything_that_a_log_knows(end: int) -> None:
    storage = MemoryStorage()
    log = filled(storage=storage)
    whole = end // 2 * 2  # batches of two are atomic
    epochs = [(epoch, start) for epoch, start in log.epochs.entries if start < whole]
    log.checkpoint()
    assert log.cut_to(end) == whole
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


def test_a_fresh_start_keeps_nothing() -> None:
    log = filled()
    log.promised(4)
    log.start_afresh(100)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark, log.durable_end_offset) == (100, 100, 99, 100)
    assert log.epochs.entries == ()
    assert log.horizon == NEVER
    assert stored(log) == Checkpoint(99, 100, 4)
    add(log, 1, epoch=1)
    assert log.epochs.entries == ((1, 100),)
    assert log.storage.names().count(log_name(100)) == 1
    assert not [name for name in log.storage.names() if name.endswith(".log") and name != log_name(100)]


def test_the_log_start_is_known_before_anything_is_removed() -> None:
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


def test_retention_stops_at_hw() -> None:
    log = a_log()
    for _ in range(6):
        add(log, 2)
        log.roll()
    log.flush()
    log.raise_high_watermark(5)
    log.drop_prefix(100)
    assert log.log_start_offset == 6
    assert log.log_end_offset == 12


class Held:
    """A segment, as retention sees one."""

    def __init__(self, base: int, records: int = 10, size: int = 100, newest_ns: int = 0) -> None:
        self.base_offset, self.next_offset = base, base + records
        self.size_bytes, self.record_count, self.max_timestamp_ns = size, records, newest_ns


@pytest.mark.parametrize(
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
def test_what_retention_leaves(config: dict[str, Any], start: int) -> None:
    """Four segments of 10 records and 100 bytes, stamped 0, 10, 20 and 30 s; it is 100 s now."""
    segments = [Held(10 * n, newest_ns=10 * n * S) for n in range(4)]
    assert retained_start(segments, StreamConfig(**config), 39, 100 * S) == start
    for hw in (-1, 8, 9, 19):
        assert retained_start(segments, StreamConfig(**config), hw, 100 * S) == min(start, (hw + 1) // 10 * 10)


@pytest.mark.parametrize(
    ("held_from", "most_bytes", "start"),
    [(None, 1000, 30), (30, 1000, 30), (35, 1000, 30), (29, 1000, 20), (12, 1000, 10), (0, 1000, 0),
     (12, 200, 10), (12, 199, 20), (0, 200, 10), (0, 99, 30), (0, 0, 30)],
)  # fmt: skip
def test_what_is_held_beyond_retention(held_from: int | None, most_bytes: int, start: int) -> None:
    """The same four segments, of which retention wants to leave the last one."""
    segments = [Held(10 * n) for n in range(4)]
    assert held_start(segments, 30, held_from, most_bytes) == start
    assert held_start(segments, 0, held_from, most_bytes) == 0


# ---- opening -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("hw", "lost"), [(16, False), (17, False), (18, True)])
def test_a_checkpoint_above_the_log_is_a_loss(hw: int, lost: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.replace(CHECKPOINT_NAME, small_files.encode_checkpoint(Checkpoint(hw, 0, 0)))
    log, report = Log.open(storage, StreamConfig(), clean=True)
    assert report.lost_committed is lost
    assert report.must_leave_isr is lost
    assert log.high_watermark == min(hw, 17)


def test_hw_is_never_below_the_log_start() -> None:
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
def test_a_tail_that_is_cut_after_a_clean_stop_was_flushed_once(clean: bool) -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.files[log_name(12)].data += b"torn"
    _, report = Log.open(storage, StreamConfig(), clean=clean)
    assert report.cut_bytes == 4
    assert report.lost_flushed is clean
    assert report.must_leave_isr is clean


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("failed", [True, False])
def test_a_log_is_believed_after_a_clean_stop_without_a_failed_flush(clean: bool, failed: bool) -> None:
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


def test_one_record_past_the_proven_hw_is_written_again() -> None:
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


def test_what_is_written_again_is_flushed_before_it_has_its_name() -> None:
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


def test_a_split_that_was_interrupted_is_completed_by_its_cut_and_its_name() -> None:
    storage = MemoryStorage()
    log = a_log(storage)
    for _ in range(4):
        add(log)
    log.flush()
    data = bytes(storage.files[log_name(0)].data)
    at = len(data) // 2
    storage.create(f"{log_name(0)}.{at}-{2:020d}.tail").append([data[at:]])
    proving.finish_splits(storage, storage.names())
    assert bytes(storage.files[log_name(0)].data) == data[:at]
    assert bytes(storage.files[log_name(2)].data) == data[at:]


@pytest.mark.parametrize("wrong", ["longer", "shorter", "another base"])
def test_an_index_is_never_believed_against_its_segment(wrong: str) -> None:
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


def test_an_index_with_bytes_behind_it_is_none() -> None:
    summary = filled().segments[0].summary()
    good = small_files.encode_index(summary)
    assert small_files.decode_index(good) == summary
    body = small_files.open_small_file(b"LFIX", good)
    assert body is not None
    for more in (b"x", bytes(24), b""):
        made = small_files.seal_small_file(b"LFIX", body + more)
        assert small_files.decode_index(made) == (None if more else summary)
    assert small_files.open_small_file(b"LFHW", good) is None, "of another kind"


# ---- damage ------------------------------------------------------------------------------------------------------------------
def spoil(log: Log, segment: int, position: int) -> None:
    data = log.storage.files[log_name(log.segments[segment].base_offset)].data  # type: ignore[attr-defined]
    data[position] ^= 1


def reopened(batches: int = 400, size: int = 400) -> Log:
    """With sealed segments that nobody has checked, of several blocks each."""
    storage = MemoryStorage()
    log = filled(batches, roll_every=batches // 2, storage=storage, segment_bytes=1 << 28)
    del size
    log.close()
    return a_log(storage)


@pytest.mark.parametrize("block", [0, 1, 2, -1])
def test_damage_anywhere_in_what_is_read_is_found_told_and_its_index_gone(block: int) -> None:
    log, told = reopened(), []
    log.on_damage = told.append
    segment = log.segments[0]
    assert len(segment.entries) >= 4
    entry = segment.entries[block]
    spoil(log, 0, entry.position + 100)
    with pytest.raises(CorruptionError) as met:
        log.read(0, 1 << 24)
    assert told == [met.value]
    assert log.storage.load(index_name(0)) is None
    assert segment.damaged


def test_a_block_of_other_offsets_is_not_served() -> None:
    """A write that went astray: right batches, at the place of others."""
    log = reopened()
    entries = log.segments[0].entries
    data = log.storage.files[log_name(0)].data  # type: ignore[attr-defined]
    at, other = entries[1], entries[2]
    size = min(entries[2].position - at.position, entries[3].position - other.position)
    data[at.position : at.position + size] = data[other.position : other.position + size]
    with pytest.raises(CorruptionError):
        log.read(at.base_offset, 1)


def test_a_torn_tail_has_nothing_right_behind_it() -> None:
    for behind, whole in ((b"", True), (build_batch([b"right"], base_offset=50, leader_epoch=9), False)):
        storage = MemoryStorage()
        filled(3, storage=storage).close()
        storage.files[log_name(0)].data += b"\0" * 200 + behind
        report = recover(storage).report
        assert (not report.damage) is whole
        assert (report.cut_bytes > 0) is whole


def test_what_is_kept_of_a_damaged_segment_is_on_the_disk_before_the_rest_is_put_away() -> None:
    storage = MemoryStorage()
    filled(storage=storage).close()
    storage.remove(index_name(0))
    storage.files[log_name(0)].data[-50] ^= 1
    calls: list[str] = []
    storage.fault = calls.append
    found = recover(storage)
    assert found.report.must_leave_isr
    assert calls.index("sync") < max(i for i, c in enumerate(calls) if c == "rename")
    kept = storage.files[log_name(0)]
    assert kept.synced == kept.size_bytes > 0
    assert storage.load(index_name(6)) is None, "of what was put aside"


def test_the_evidence_that_is_kept_is_the_newest() -> None:
    storage = MemoryStorage()
    for base in range(DAMAGED_KEPT + 3):
        storage.create(log_name(base))
        storage.replace(index_name(base), b"x")
        set_aside(storage, base, DAMAGED)
        assert storage.load(index_name(base)) is None
    removed = drop_set_aside(storage)
    assert [int(name[:20]) for name in removed] == [0, 1, 2]
    assert [int(name[:20]) for name in storage.names()] == [3, 4, 5]


def test_complaints_are_looked_into_once_a_second_each() -> None:
    rechecks = Rechecks()
    said = [rechecks.is_due("n1", now) for now in (0, EVERY_NS // 2, EVERY_NS - 1, EVERY_NS, EVERY_NS + 1)]
    assert said == [True, False, False, True, False], "one that came too soon does not count"
    for number in range(MAX_ASKERS + 20):
        rechecks.is_due(f"x{number}", 0)
    assert len(rechecks._last_ns) <= MAX_ASKERS
    log = filled()
    assert [log.complaint(offset, "n1", EVERY_NS * n) for n, offset in enumerate((0, 17, 18, -1))] == [
        Recheck.SOUND, Recheck.SOUND, Recheck.NOT_HERE, Recheck.NOT_HERE,
    ]  # fmt: skip


def test_the_scrub_follows_order_and_reads_what_is_flushed() -> None:
    log = filled()
    segment = log.segments[0]
    scan = scan_of(log, segment)
    assert scan is not None
    while not scan.done:
        scan.step(segment.file, 200)
    data = bytes(log.storage.files[log_name(0)].data)  # type: ignore[attr-defined]
    third = len(data) // 3
    file = MemoryStorage().create("x")
    file.append(
        [data[third : 2 * third], data[third : 2 * third], data[2 * third :]]
    )  # an older block's place has a newer one's bytes
    with pytest.raises(CorruptionError):
        Scan(0, len(data)).step(file, 1 << 20)
    assert freshly_sealed(log) is log.segments[0]
    add(log, epoch=3)
    log.roll()
    for done in log.segments[:-2]:
        done.awaits_scrub = False
    assert freshly_sealed(log) is None, "not flushed yet"
    log.flush()
    assert freshly_sealed(log) is log.segments[-2]


# ---- reading -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hw", range(-1, 8))
@pytest.mark.parametrize("max_bytes", [1, 300, 1 << 20])
def test_nothing_past_hw_is_read_whole_or_in_pieces(hw: int, max_bytes: int) -> None:
    log = a_log()
    for count in (1, 3, 2, 2):
        add(log, count)
    log.flush()
    if hw >= 0:
        log.raise_high_watermark(hw)
    for start in range(hw + 2):
        result = log.read(start, max_bytes)
        batches = [batch for chunk in result.chunks for batch in split_batches(chunk)]
        assert all(batch.last_offset <= hw for batch in batches)
        part = log.read_part(start, 0, 10)
        assert part is None or part[0].last_offset <= hw
        ends = [0, 1, 4, 6, 8]
        if any(start < end <= hw + 1 for end in ends):
            assert batches or start >= max(end for end in ends if end <= hw + 1)


@pytest.mark.parametrize("max_bytes", [1, 250, 400, 700, 1 << 20])
def test_reads_miss_nothing_whatever_fits_an_answer(max_bytes: int) -> None:
    log = filled(12)
    found, at = [], 0
    while at <= log.high_watermark:
        result = log.read(at, max_bytes)
        batches = [batch for chunk in result.chunks for batch in split_batches(chunk)]
        assert batches[0].base_offset == at
        assert [b.next_offset for b in batches[:-1]] == [b.base_offset for b in batches[1:]]
        assert result.next_offset == batches[-1].next_offset
        assert result.size_bytes <= max(max_bytes, len(batches[0].view))
        found += batches
        at = result.next_offset
    assert [offset for batch in found for offset in batch.offsets().tolist()] == list(range(24))


def test_a_time_is_found_where_clocks_fall() -> None:
    log = a_log()
    times = [10, 20, 5, 30, 30, 7, 40]
    for number, time_s in enumerate(times):
        if number in (3, 5):
            log.roll()
        add(log, timestamp_ns=time_s * S, size=INDEX_INTERVAL_BYTES // 2)
    log.flush()
    for wanted_s in range(45):
        first = next((n for n, time_s in enumerate(times) if time_s >= wanted_s), None)
        assert first_offset_at(log.segments, wanted_s * S) == first, wanted_s
    assert [segment.max_timestamp_ns // S for segment in log.segments] == [20, 30, 40]


def test_epochs_by_offset_and_by_epoch() -> None:
    cache = EpochCache([(1, 0), (4, 7), (6, 9)])
    assert [cache.epoch_at(offset) for offset in (0, 6, 7, 8, 9, 20)] == [1, 1, 4, 4, 6, 6]
    assert [cache.end_offset_for(epoch, 12) for epoch in (0, 1, 3, 4, 5, 6, 9)] == [
        (0, 0), (1, 7), (1, 7), (4, 9), (4, 9), (6, 12), (6, 12),
    ]  # fmt: skip
    for end, left in ((12, 3), (10, 3), (9, 2), (8, 2), (7, 1), (1, 1), (0, 0)):
        cache = EpochCache([(1, 0), (4, 7), (6, 9)])
        cache.cut(end)
        assert len(cache.entries) == left


# ---- compaction --------------------------------------------------------------------------------------------------------------
def keyed(
    *batches: list[tuple[bytes | None, bytes | None]], config: dict[str, Any] | None = None, epochs: tuple[int, ...] = ()
) -> Log:
    log = a_log(compaction=True, **(config or {}))
    for number, rows in enumerate(batches):
        log.append(
            build_batch(
                [value for _, value in rows], keys=[key for key, _ in rows], base_offset=log.log_end_offset,
                leader_epoch=epochs[number] if epochs else 1, timestamp_ns=number * S,
            )
        )  # fmt: skip
        log.roll()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def compacted(log: Log, now_ns: int = 0) -> list[tuple[int, bytes | None, bytes | None]]:
    compaction = log.begin_compaction(now_ns)
    assert compaction is not None
    compaction.run()
    log.complete_compaction(compaction)
    rows, at = [], 0
    while at <= log.high_watermark:
        result = log.read(at, 1 << 20)
        for chunk in result.chunks:
            for batch in split_batches(chunk):
                if batch.record_count:
                    rows += list(zip(batch.offsets().tolist(), batch.keys(), batch.values(), strict=True))
        at = result.next_offset
    return rows


def test_the_last_of_each_key_stays_and_all_without_a_key() -> None:
    log = keyed([(b"a", b"1"), (None, b"x")], [(b"b", b"1"), (b"a", b"2")], [(None, b"y"), (b"b", b"2")])
    assert compacted(log) == [(1, None, b"x"), (3, b"a", b"2"), (4, None, b"y"), (5, b"b", b"2")]
    assert log.horizon == Horizon(6, 1)
    assert decode_horizon(log.storage.load(HORIZON_NAME)) == Horizon(6, 1), "stored before it is told"


@pytest.mark.parametrize(("age_s", "gone"), [(99, False), (101, True)])
def test_a_tombstone_stays_as_long_as_it_is_to(age_s: int, gone: bool) -> None:
    log = keyed([(b"a", None), (b"b", b"1")], [(b"c", b"1")], config={"delete_retention_s": 100.0})
    kept = [key for _, key, _ in compacted(log, age_s * S)]
    assert (b"a" not in kept) is gone


def test_compaction_keeps_epochs_and_segments_as_they_are_to_be() -> None:
    rows = [[(b"a", b"%d" % n)] for n in range(6)]
    log = keyed(*rows, [(b"z", b"1")], epochs=(1, 1, 2, 2, 3, 3, 3))
    before = log.epochs.entries
    assert [offset for offset, *_ in compacted(log)] == [5, 6]
    again = Log.open(log.storage.crash(), StreamConfig())[0]  # type: ignore[attr-defined]
    assert again.epochs.entries == before
    sizes = [len(build_batch([b"v" * 2000], keys=[b"k%d" % n])) for n in range(1)]
    log = keyed(*([(b"k%d" % n, b"v" * 2000)] for n in range(9)), config={"segment_bytes": 3 * sizes[0] + 10})
    assert len(compacted(log)) == 9
    assert all(segment.size_bytes <= 3 * sizes[0] + 10 for segment in log.segments)
    assert len(log.segments) == 4


def test_what_a_compaction_writes_is_flushed_and_what_it_abandons_is_removed() -> None:
    log = keyed([(b"a", b"1")], [(b"a", b"2")])
    compaction = log.begin_compaction(0)
    assert compaction is not None
    compaction.run()
    for output in compaction.outputs:
        file: Any = output.segment.file
        assert file.synced == file.size_bytes
    compaction.abandon()
    assert not [name for name in log.storage.names() if name.endswith(".tmp")]


def test_compaction_looks_at_what_is_committed_and_flushed() -> None:
    log = a_log(compaction=True)
    for number in range(6):
        add(log, keys=[b"k"])
        log.roll()
        if number == 3:
            log.flush()
    for hw, inputs in ((-1, 0), (0, 1), (1, 2), (3, 4), (5, 4)):
        if hw >= 0:
            log.raise_high_watermark(hw)
        found = log.begin_compaction(0)
        assert (len(found.inputs) if isinstance(found, Compaction) else 0) == inputs


def test_a_horizon_rises_with_its_epoch_and_an_empty_log_has_none() -> None:
    log = filled()
    horizon = CompactionHorizon(log.storage, log.segments, log.storage.load(HORIZON_NAME))
    assert horizon.rise(Horizon(5, 7))
    assert horizon.rise(Horizon(6, 3))
    assert horizon.value == Horizon(6, 7)
    assert not horizon.rise(Horizon(6, 9))
    assert CompactionHorizon(log.storage, log.segments, log.storage.load(HORIZON_NAME)).value == Horizon(6, 7)
    empty = a_log()
    empty.storage.replace(HORIZON_NAME, log.storage.load(HORIZON_NAME) or b"")
    assert CompactionHorizon(empty.storage, empty.segments, empty.storage.load(HORIZON_NAME)).value == NEVER


# ---- Arrow -------------------------------------------------------------------------------------------------------------------
def three() -> list[RecordBatch]:
    made = [
        build_batch([b"a", b"b"], base_offset=0, leader_epoch=1, subjects=["x", "y"]),
        build_batch([b"-"], base_offset=2, leader_epoch=1, control=True),
        build_batch([b"c", b"d", b"e"], base_offset=3, leader_epoch=2, subjects=["y", "z", "z"]),
        build_batch([b"f"], base_offset=6, leader_epoch=2, subjects=["w"]),
    ]
    return [parse_batch(data) for data in made]


@pytest.mark.parametrize("start", [None, *range(8)])
@pytest.mark.parametrize("end", [None, *range(8)])
def test_a_range_is_its_first_and_not_its_end(start: int | None, end: int | None) -> None:
    rows = [(0, b"a", "x"), (1, b"b", "y"), (3, b"c", "y"), (4, b"d", "z"), (5, b"e", "z"), (6, b"f", "w")]
    table = arrow.to_arrow(three(), columns=("offset", "value", "subject"), from_offset=start, end_offset=end)
    wanted = [row for row in rows if row[0] >= (start or 0) and (end is None or row[0] < end)]
    assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == wanted


def test_two_gibibytes_in_all_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Column:
        ends = np.array([1 << 30], dtype=np.uint32)
        data = memoryview(b"")
        validity = None

    part: Any = arrow._Part(Column(), 0, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="2 GiB"):
        arrow._bytes_array([part, part], arrow.pa.binary())


# ---- where flushes run ---------------------------------------------------------------------------------------------------------
def test_flushes_move_to_the_loop_by_points_and_back_by_one_that_is_long() -> None:
    place = FlushPlace()
    place.tried_out([SHORT_S] * (PROBES - 1))
    assert not place.on_loop
    place.took_in_thread(SHORT_S * 2, 1)
    for _ in range(3):
        place.took_in_thread(SHORT_S, 1)
    assert not place.on_loop, "a miss takes three points away"
    place.took_in_thread(SHORT_S, 1)
    assert place.on_loop
    place.took_on_loop(LONG_S - 0.001)
    assert place.on_loop
    place.took_on_loop(LONG_S)
    assert not place.on_loop


def test_every_step_of_a_close_is_made() -> None:
    log = filled()
    add(log, 2, epoch=3)
    log.close()
    again, report = Log.open(log.storage, StreamConfig(), clean=True)
    assert (again.high_watermark, again.log_end_offset) == (17, 20)
    assert report.checkpoint_found
    assert log.storage.load(small_files.EPOCHS_NAME) is not None
