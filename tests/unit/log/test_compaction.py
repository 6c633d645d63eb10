"""Test compaction against a dictionary of the last record of each key, with a crash at any call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import strategies as st

from liftpy.config import NS_PER_S, StreamConfig
from liftpy.core.base.partition import Purge
from liftpy.core.log import compaction
from liftpy.core.log.log import Log
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import Record, split_batches
from liftpy.errors import LogClosedError, NoSpaceError, StorageError
from sidecar.disk.files import DirectoryStorage, DiskFile
from tests.batches import build_batch
from tests.long import every

CONFIG = StreamConfig(segment_bytes=4096, compaction=True, delete_retention_s=100.0)
NOW_NS = 1_000 * 10**9


def _append(log: Log, rows: list[tuple[bytes | None, bytes | None]], epoch: int = 1, timestamp_ns: int = NOW_NS) -> None:
    keys, values = [k for k, _ in rows], [v for _, v in rows]
    log.append(
        build_batch(values, keys=keys, base_offset=log.log_end_offset, leader_epoch=epoch, timestamp_ns=timestamp_ns),
    )


def _records(log: Log) -> list[Record]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 1 << 20, end_offset=log.log_end_offset)
        batches = [b for chunk in result.chunks for b in split_batches(chunk)]
        for batch in batches:
            assert batch.base_offset == offset, "batches follow on each other without a gap"
            offset = batch.next_offset
            found += list(batch.records())
        assert result.next_offset == offset
    return found


def _keyed(storage: MemoryStorage | None = None, batches: int = 80, *, keyless: bool = True) -> Log:
    log, _ = Log.open(storage or MemoryStorage(), CONFIG)
    for i in range(batches):
        rows = [(b"k%d" % ((i * 3 + j) % 7), b"%d-%d" % (i, j) + b"." * 40) for j in range(3)]
        _append(log, [*rows, (None, b"keyless")] if keyless else rows, epoch=1 + i // 30)
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def _compact(log: Log, now_ns: int = NOW_NS) -> int:
    compaction = log.begin_compaction(now_ns)
    if compaction is None:
        return 0
    compaction.run()
    return log.complete_compaction(compaction)


def _newest_per_key(records: list[Record]) -> dict[bytes, tuple[int, bytes | None]]:
    return {r.key: (r.offset, r.value) for r in records if r.key is not None}


def test_compaction_retains_the_last_record_of_each_key_at_its_offset() -> None:
    log = _keyed()
    before, epochs, segments = _records(log), log.epochs.entries, len(log.segments)
    dropped = _compact(log)
    after = _records(log)
    assert dropped > 100
    assert len(after) == len(before) - dropped
    assert _newest_per_key(after) == _newest_per_key(before)
    assert [r for r in after if r.key is None] == [r for r in before if r.key is None]
    assert set(after) <= set(before)
    assert log.epochs.entries == epochs
    assert _compact(log) == 0  # nothing more to drop, but now the small segments fit into fewer
    assert len(log.segments) < segments
    assert _records(log) == after
    assert Log.open(log.storage, CONFIG)[0].epochs.entries == epochs
    assert _records(Log.open(log.storage, CONFIG)[0]) == after


def test_follower_continues_at_any_batch_end_after_a_compaction_on_the_leader() -> None:
    leader, (follower, _) = _keyed(keyless=False), Log.open(MemoryStorage(), CONFIG)
    ends = [0]
    while follower.log_end_offset < 100:
        chunk = leader.read(follower.log_end_offset, 1).chunks[0]
        follower.append(chunk)
        ends.append(follower.log_end_offset)
    while _compact(leader):
        pass
    assert any(b.record_count == 0 for b in split_batches(leader.read(0, 1 << 20).chunks[0])), "there is a filler"
    for end in reversed(ends):
        follower.truncate_to(end)
        assert follower.log_end_offset == end
        batches = split_batches(leader.read(end, 1).chunks[0])
        assert [b.base_offset for b in batches] == [end]
        follower.append_batches(batches[0].view, batches)
    while follower.log_end_offset < leader.log_end_offset:
        for chunk in leader.read(follower.log_end_offset, 5000).chunks:
            follower.append_batches(chunk, split_batches(chunk))
    assert _records(follower) == _records(leader)
    assert follower.epochs.entries == leader.epochs.entries


def test_compaction_waits_while_the_dirty_ratio_is_too_small() -> None:
    log = _keyed()
    compaction = log.begin_compaction(NOW_NS, min_dirty_ratio=0.5)
    assert compaction is not None
    compaction.run()
    log.complete_compaction(compaction)
    assert log.begin_compaction(NOW_NS, min_dirty_ratio=0.5) is None


def test_compaction_on_a_full_disk_leaves_no_temporary_files() -> None:
    storage = MemoryStorage()
    log = _keyed(storage)
    before, names = _records(log), storage.names()
    storage.capacity_bytes = storage.used_bytes() + 500
    with pytest.raises(NoSpaceError):
        _compact(log)
    assert (_records(log), storage.names()) == (before, names)


def test_compaction_of_a_log_that_a_full_disk_closes_during_the_run_leaves_no_temporary_files() -> None:
    storage = MemoryStorage()
    log = _keyed(storage)
    compaction = log.begin_compaction(NOW_NS)
    assert compaction is not None
    compaction.run()
    output_files = {output.temporary for output in compaction.outputs}
    assert output_files <= set(storage.names())
    storage.capacity_bytes = storage.used_bytes()
    with pytest.raises(NoSpaceError):
        _append(log, [(b"k", b"v")], epoch=3)
    with pytest.raises(LogClosedError):
        log.complete_compaction(compaction)
    assert output_files.isdisjoint(storage.names())


def test_compaction_error_during_the_file_exchange_closes_the_log() -> None:
    storage = MemoryStorage()
    log = _keyed(storage)
    compaction = log.begin_compaction(NOW_NS)
    assert compaction is not None
    compaction.run()
    storage.fail_after(2)
    with pytest.raises(StorageError):
        log.complete_compaction(compaction)
    with pytest.raises(LogClosedError, match="compaction failed"):
        log.read(0, 100)


def test_compaction_ignores_records_above_the_high_watermark() -> None:
    log = _keyed()
    log.high_watermark = -1
    assert log.begin_compaction(NOW_NS) is None


def test_compaction_removes_a_tombstone_after_its_retention() -> None:
    log, _ = Log.open(MemoryStorage(), CONFIG)
    _append(log, [(b"first", b"v")])
    _append(log, [(b"a", b"v" * 2000)])
    _append(log, [(b"a", None), (b"b", b"stays")])
    _append(log, [(b"c", b"v" * 4000)])
    _append(log, [(b"d", b"v")])
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    _compact(log, NOW_NS + 99 * 10**9)
    assert [(r.key, r.value) for r in _records(log)][1:3] == [(b"a", None), (b"b", b"stays")]
    _compact(log, NOW_NS + 101 * 10**9)
    assert b"a" not in {r.key for r in _records(log)}


def test_compaction_of_a_log_truncated_during_the_run_is_discarded() -> None:
    log = _keyed()
    compaction = log.begin_compaction(NOW_NS)
    assert compaction is not None
    compaction.run()
    log.truncate_to(200)
    before = _records(log)
    assert log.complete_compaction(compaction) == 0
    assert _records(log) == before
    assert not [n for n in log.storage.names() if n.endswith(".tmp")]


class _RetentionDuringWrites(DirectoryStorage):
    """Deletes the records below an offset in front of a certain call of ``create``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.calls_left = -1
        self.delete: Callable[[], None] = lambda: None

    def create(self, name: str) -> DiskFile:
        self.calls_left -= 1
        if self.calls_left == 0:
            self.delete()
        return super().create(name)


@pytest.mark.parametrize("runs_before", [0, 1], ids=["whole segments", "merged segments"])
def test_compaction_continues_when_retention_removes_segments_during_the_run(tmp_path: Path, runs_before: int) -> None:
    """Retention does not wait for a long compaction of the same log."""
    has_ended, number = False, 0
    while not has_ended:
        number += 1
        log, _ = Log.open(storage := _RetentionDuringWrites(tmp_path / str(number)), CONFIG)
        for batch in range(60):
            _append(log, [(b"k%d" % ((batch * 3 + j) % 7), b"%d-%d" % (batch, j) + b"." * 60) for j in range(3)])
        log.flush()
        log.raise_high_watermark(log.newest_offset)
        for _ in range(runs_before):
            _compact(log)
        newest = _newest_per_key(_records(log))
        run = log.begin_compaction(NOW_NS)
        assert run is not None
        storage.calls_left, storage.delete = number, lambda log=log: log.drop_prefix(100)  # type: ignore[misc]
        run.run()
        has_ended = storage.calls_left > 0
        if has_ended:
            log.drop_prefix(100)
        before = _records(log)
        assert before[0].offset == 99 or runs_before
        assert log.complete_compaction(run) >= len(before) - len(after := _records(log))
        assert set(after) <= set(before)
        assert _newest_per_key(after) == newest
        assert len(after) < len(before) or runs_before
        assert not [name for name in storage.names() if name.endswith(".tmp")]
        log.close()
        assert _records(Log.open(DirectoryStorage(storage.folder), CONFIG, clean=True)[0]) == after
    assert number > 1


def test_compaction_of_subjects_removes_nothing_when_retention_removes_segments_during_the_run() -> None:
    """The first pass has counted the records that retention has removed since, so too many of the others would go."""
    log, _ = Log.open(MemoryStorage(), StreamConfig(segment_bytes=4096, max_per_subject=40))
    for number in range(60):
        log.append(build_batch([b"." * 200], subjects=["s"], base_offset=number, leader_epoch=1, timestamp_ns=NOW_NS))
    log.flush()
    log.raise_high_watermark(59)
    run = log.begin_compaction(NOW_NS)
    assert run is not None
    run.run()
    assert run.outputs
    log.drop_prefix(30)
    assert log.complete_compaction(run) == 0
    assert [record.offset for record in _records(log)] == list(range(30, 60))


def test_purge_is_not_complete_when_retention_removes_a_part_of_a_merged_file_during_the_run() -> None:
    log, _ = Log.open(MemoryStorage(), CONFIG)
    for number in range(12):
        _append(log, [(b"k%d" % number, b"." * 300)])
        log.roll()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    log.cleaning.purges = (Purge(number=7, keys=(b"k5", b"k7"), end_offset=12),)
    run = log.begin_compaction(NOW_NS)
    assert run is not None
    run.run()
    log.drop_prefix(3)
    log.complete_compaction(run)
    assert not log.cleaning.purged
    _compact(log)
    assert log.cleaning.purged == {7}
    assert [record.offset for record in _records(log)] == [3, 4, 6, 8, 9, 10, 11]


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_compaction_that_crashes_at_any_storage_call_loses_no_remaining_record(power: bool) -> None:
    calls = 0
    while True:
        storage = MemoryStorage()
        log = _keyed(storage, batches=60)
        before = _records(log)
        log.checkpoint()
        storage.fail_after(calls)
        try:
            _compact(log)
            done = True
        except StorageError:
            done = False
        survivor, report = Log.open(storage.crash(power=power), CONFIG)
        after = _records(survivor)
        assert not report.must_leave_isr, (calls, report)
        assert _newest_per_key(after) == _newest_per_key(before), calls
        assert set(after) <= set(before)
        assert survivor.epochs.entries == log.epochs.entries
        assert not [n for n in survivor.storage.names() if n.endswith(".tmp")]
        if done:
            break
        calls += every(3)
    assert calls > 5


_rows = st.lists(
    st.tuples(st.sampled_from([None, b"a", b"b", b"c"]), st.none() | st.binary(max_size=300)), min_size=1, max_size=5
)


@pytest.mark.parametrize(("window_s", "kept"), [(60.0, [3, 5]), (3600.0, [0, 1, 3, 5]), (0.0, [5])])
def test_compaction_retains_records_with_message_ids_until_the_dedup_window_has_passed(
    window_s: float, kept: list[int]
) -> None:
    """A log that is opened without a state file learns the ids from them."""
    storage, config = MemoryStorage(), StreamConfig(segment_bytes=4096, compaction=True, dedup_window_s=window_s)
    log, _ = Log.open(storage, config)
    minute = 60 * NS_PER_S
    times = (0, 0, minute + 1, minute + 1, 2 * minute, 2 * minute)
    named = [[("h", b"x")], [("h", b"")], None, [("h", b"1")], None, None]
    for offset, (at_ns, headers) in enumerate(zip(times, named, strict=True)):
        column = [headers] if headers else None
        log.append(
            build_batch([b"v" * 3000], keys=[b"k"], headers=column, base_offset=offset, leader_epoch=1, timestamp_ns=at_ns)
        )
    log.append(build_batch([b"w"], base_offset=6, leader_epoch=1, timestamp_ns=2 * minute))
    log.append(build_batch([b"w" * 4000], base_offset=7, leader_epoch=1, timestamp_ns=2 * minute))
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    _compact(log, now_ns=0)
    assert [record.offset for record in _records(log) if record.key is not None] == kept


def _with_more_keys_than_fit(monkeypatch: pytest.MonkeyPatch) -> Log:
    """A log in which each key has three records. Only the newest one has the subject ``new``. The newest one of k0 is a tombstone."""
    monkeypatch.setattr(compaction, "MAX_KEYS", 6)
    log, _ = Log.open(MemoryStorage(), CONFIG)
    for turn in range(3):
        for number in range(40):
            value = None if (turn, number) == (2, 0) else b"%d" % turn + b"." * 60
            log.append(
                build_batch(
                    [value],
                    keys=[b"k%d" % number],
                    subjects=["new" if turn == 2 else "old"],
                    base_offset=log.log_end_offset,
                    leader_epoch=1,
                    timestamp_ns=NOW_NS - 200 * NS_PER_S,
                )
            )
    log.roll()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log


def test_compaction_of_more_keys_than_fit_into_one_run_keeps_only_the_newest_record_of_each_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = _with_more_keys_than_fit(monkeypatch)
    newest = _newest_per_key(_records(log))
    runs = 0
    while (run := log.begin_compaction(NOW_NS, min_dirty_ratio=0.5)) is not None:
        runs += 1
        assert runs < 256, "the runs come to an end"
        run.run()
        log.complete_compaction(run)
        assert all(newest[key] == found for key, found in _newest_per_key(_records(log)).items())
    assert sorted(record.offset for record in _records(log)) == list(range(81, 120)), "the old tombstone is gone, too"


@pytest.mark.parametrize("written_twice", [(), (37,), (50, 120, 190)])
def test_compaction_of_more_keys_than_fit_into_one_run_writes_only_segments_with_replaced_records(
    monkeypatch: pytest.MonkeyPatch, written_twice: Sequence[int]
) -> None:
    """Each cycle wrote the whole log once for each class of keys."""
    monkeypatch.setattr(compaction, "MAX_KEYS", 100)
    calls: list[str] = []
    storage = MemoryStorage(fault=calls.append)
    log, _ = Log.open(storage, CONFIG)
    for number in (*range(400), *written_twice):
        _append(log, [(b"k%d" % number, b"." * 300)])
    log.roll()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    calls.clear()
    before, runs = len(log.segments), 0
    while (run := log.begin_compaction(NOW_NS, min_dirty_ratio=0.5)) is not None:
        runs += 1
        run.run()
        log.complete_compaction(run)
    assert runs > 4
    assert before > 30
    assert len(_records(log)) == 400
    assert calls.count("create") == len(written_twice), "one file for each segment with a replaced record"


def test_purge_in_a_log_with_more_keys_than_fit_into_one_run_is_carried_out_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    log = _with_more_keys_than_fit(monkeypatch)
    newest = _newest_per_key(_records(log))
    log.cleaning.purges = (Purge(number=7, subjects=("new",), end_offset=log.log_end_offset),)
    runs = 0
    while not log.cleaning.purged:
        assert runs < 256
        _compact(log)
        runs += 1
        left = _newest_per_key(_records(log))
        assert all(newest[key] == found for key, found in left.items()), "no older record becomes the value of its key"
    assert runs > 1
    assert not _records(log)


@pytest.mark.parametrize("grows", [False, True])
def test_subjects_above_the_limit_of_one_run_keep_their_newest_records(monkeypatch: pytest.MonkeyPatch, grows: bool) -> None:
    monkeypatch.setattr(compaction, "MAX_KEYS", 6)
    log, _ = Log.open(MemoryStorage(), StreamConfig(segment_bytes=4096, max_per_subject=2))

    def publish(subjects: range) -> None:
        for subject in subjects:
            values = [b"%d" % (log.log_end_offset + number) for number in range(4)]
            log.append(
                build_batch(
                    values, subjects=[f"s{subject}"] * 4, base_offset=log.log_end_offset, leader_epoch=1, timestamp_ns=NOW_NS
                )
            )
        log.roll()
        log.flush()
        log.raise_high_watermark(log.newest_offset)

    publish(range(10))
    _compact(log)
    publish(range(10, 60) if grows else range(10))
    for _ in range(256):
        _compact(log)
    subjects = Counter(record.subject for record in _records(log))
    assert subjects == {f"s{number}": 2 for number in range(60 if grows else 10)}


@pytest.mark.parametrize("free_bytes", [20_000, 4_000])
def test_compaction_on_an_almost_full_disk_leaves_room_for_other_partitions(free_bytes: int) -> None:
    least_free_bytes: list[int] = []
    storage = MemoryStorage(fault=lambda _: least_free_bytes.append(storage.free_bytes()))
    log, _ = Log.open(storage, CONFIG)
    for number in range(600):
        _append(log, [(b"k%d" % number if number % 4 else b"hot", b"%d" % number + b"." * 80)])
    log.roll()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    log.checkpoint()
    newest = _newest_per_key(_records(log))
    storage.capacity_bytes = storage.used_bytes() + free_bytes
    least_free_bytes.clear()
    runs = 0
    while (run := log.begin_compaction(NOW_NS, min_dirty_ratio=0.5)) is not None:
        runs += 1
        assert runs < 20
        try:
            run.run()
        except NoSpaceError:
            break
        log.complete_compaction(run)
        assert _newest_per_key(_records(log)) == newest
    assert len(_records(log)) == (451 if free_bytes > 2 * CONFIG.segment_bytes else 600)
    assert min(least_free_bytes, default=free_bytes) >= min(free_bytes, CONFIG.segment_bytes)
    assert not [name for name in storage.names() if name.endswith(".tmp")]
