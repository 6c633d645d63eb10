"""Test that damage in a log is found, reported and quarantined, and test the scrub that looks for it [S3]."""

from __future__ import annotations

import pytest

from liftpy.core.log.log import EVERY_NS, MAX_ASKERS, Log, RecheckLimiter, RecheckResult
from liftpy.core.log.recovery import DAMAGED, MAX_QUARANTINED_FILES, delete_quarantined_files, recover, set_aside
from liftpy.core.log.scrub import Scan, freshly_sealed, scan_of
from liftpy.core.log.segment import index_name, log_name
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import build_batch
from liftpy.errors import CorruptionError
from tests.unit.log.small_logs import a_log, add, filled


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
def test_log_read_of_a_damaged_block_reports_damage_and_deletes_the_index_file(block: int) -> None:
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


def test_log_read_of_a_block_with_wrong_offsets_raises_corruption() -> None:
    """A misdirected write put correct batches at the place of others."""
    log = reopened()
    entries = log.segments[0].entries
    data = log.storage.files[log_name(0)].data  # type: ignore[attr-defined]
    at, other = entries[1], entries[2]
    size = min(entries[2].position - at.position, entries[3].position - other.position)
    data[at.position : at.position + size] = data[other.position : other.position + size]
    with pytest.raises(CorruptionError):
        log.read(at.base_offset, 1)


def test_recovery_treats_invalid_bytes_as_a_torn_tail_only_without_a_valid_batch_after_them() -> None:
    for behind, whole in ((b"", True), (build_batch([b"right"], base_offset=50, leader_epoch=9), False)):
        storage = MemoryStorage()
        filled(3, storage=storage).close()
        storage.files[log_name(0)].data += b"\0" * 200 + behind
        report = recover(storage).report
        assert (not report.damage) is whole
        assert (report.cut_bytes > 0) is whole


def test_recovery_flushes_the_valid_part_before_it_quarantines_the_rest() -> None:
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


def test_quarantine_deletes_all_but_the_newest_damaged_files() -> None:
    storage = MemoryStorage()
    for base in range(MAX_QUARANTINED_FILES + 3):
        storage.create(log_name(base))
        storage.replace(index_name(base), b"x")
        set_aside(storage, base, DAMAGED)
        assert storage.load(index_name(base)) is None
    removed = delete_quarantined_files(storage)
    assert [int(name[:20]) for name in removed] == [0, 1, 2]
    assert [int(name[:20]) for name in storage.names()] == [3, 4, 5]


def test_damage_report_of_one_peer_causes_at_most_one_recheck_per_second() -> None:
    rechecks = RecheckLimiter()
    said = [rechecks.is_due("n1", now) for now in (0, EVERY_NS // 2, EVERY_NS - 1, EVERY_NS, EVERY_NS + 1)]
    assert said == [True, False, False, True, False], "one that came too soon does not count"
    for number in range(MAX_ASKERS + 20):
        rechecks.is_due(f"x{number}", 0)
    assert len(rechecks._last_ns) <= MAX_ASKERS
    log = filled()
    assert [log.complaint(offset, "n1", EVERY_NS * n) for n, offset in enumerate((0, 17, 18, -1))] == [
        RecheckResult.SOUND, RecheckResult.SOUND, RecheckResult.NOT_HERE, RecheckResult.NOT_HERE,
    ]  # fmt: skip


def test_scrub_reads_flushed_batches_in_order() -> None:
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
