"""Test real files of a log: descriptors, number of reads, and indexes after a repair."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from liftpy.config import StreamConfig
from liftpy.core.log.compaction_point import NEVER, Horizon, infer_horizon
from liftpy.core.log.inspect import inspect
from liftpy.core.log.log import Log
from liftpy.core.log.scrub import Scan
from liftpy.core.log.segment import Segment, walk
from liftpy.core.log.storage import MemoryStorage
from liftpy.errors import StorageError
from sidecar.disk.files import DirectoryStorage
from tests.batches import build_batch
from tests.open_files import open_files
from tests.unit.log.log_model import content, fill
from tests.unit.log.test_compaction import CONFIG, NOW_NS, _append, _records


def test_compaction_on_disk_closes_old_files_and_reads_new_ones(tmp_path: Path) -> None:
    log, _ = Log.open(DirectoryStorage(tmp_path / "0"), CONFIG)
    for number in range(80):
        _append(log, [(b"k%d" % ((number * 3 + j) % 7), b"%d-%d" % (number, j) + b"." * 40) for j in range(3)])
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    newest = {record.key: (record.offset, record.value) for record in _records(log)}
    compaction = log.begin_compaction(NOW_NS)
    assert compaction is not None
    compaction.run()
    assert log.complete_compaction(compaction) > 0
    kept = _records(log)
    for key, (offset, value) in newest.items():
        assert [(r.offset, r.value) for r in kept if r.key == key][-1] == (offset, value)
    assert not [name for name in open_files(tmp_path / "0") if "deleted" in name], "what was replaced takes no space any more"
    for segment in log.segments[:-1]:
        segment.recheck(segment.base_offset)
    log.close()
    assert open_files(tmp_path / "0") == []
    again, report = Log.open(DirectoryStorage(tmp_path / "0"), CONFIG, clean=True)
    assert not report.must_leave_isr
    assert [(r.offset, r.value) for r in _records(again)] == [(r.offset, r.value) for r in kept]
    again.close()


def a_segment(base: int, end: int, records: int, *epochs: tuple[int, int]) -> Any:
    return SimpleNamespace(base_offset=base, next_offset=end, record_count=records, epochs=list(epochs))


@pytest.mark.parametrize(
    ("segments", "horizon"),
    [
        ([a_segment(0, 10, 10, (1, 0)), a_segment(10, 20, 10, (2, 12))], NEVER),
        ([a_segment(0, 10, 9, (1, 0)), a_segment(10, 20, 10, (2, 12))], Horizon(10, 1, 10)),
        ([a_segment(0, 10, 9, (1, 0)), a_segment(10, 20, 10, (2, 10))], Horizon(10, 1, 10)),
        ([a_segment(0, 10, 9, (1, 0), (2, 9)), a_segment(10, 20, 10, (3, 12))], Horizon(10, 2, 10)),
        ([a_segment(0, 10, 10, (1, 0)), a_segment(10, 20, 9, (2, 19))], Horizon(20, 2, 20)),
        ([a_segment(5, 10, 4)], Horizon(10, 0, 10)),
    ],
)
def test_compaction_horizon_is_inferred_from_compacted_segments(segments: list[Any], horizon: Horizon) -> None:
    assert infer_horizon(segments) == horizon


# ---- checks ------------------------------------------------------------------------------------------------------------


def test_log_scan_of_batches_larger_than_the_read_size_reads_few_extra_bytes() -> None:
    log, _ = Log.open(MemoryStorage(), StreamConfig())
    for offset in range(20):
        log.append(build_batch([bytes(200_000)], base_offset=offset, leader_epoch=1, timestamp_ns=1))
    log.flush()
    segment = log.segments[0]
    scan = Scan(0, segment.size_bytes)
    while not scan.done:
        scan.step(segment.file, 128 * 1024)
    assert segment.size_bytes < scan.read_bytes < 2 * segment.size_bytes


# ---- a segment that is split for its unproven tail ------------------------------------------------------------------------
@pytest.mark.parametrize("flushed", [1, 5, 11, 12, 20, 23])
def test_segment_index_after_a_split_equals_a_scan_of_the_segment(flushed: int) -> None:
    storage = MemoryStorage()
    log, _ = Log.open(storage, StreamConfig())
    for number in range(24):
        fill(log, 1, epoch=1 + number // 3, size=700)
        if number + 1 == flushed:
            log.flush()
            log.raise_high_watermark(log.newest_offset)
            log.checkpoint()
    whole, epochs = content(log), list(log.epochs.entries)

    def fault(what: str) -> None:
        if what == "sync":
            raise StorageError("simulated flush error")

    storage.fault = fault
    with pytest.raises(StorageError):
        log.flush()
    storage.fault = None
    after = storage.crash(power=False)
    again, _ = Log.open(after, StreamConfig())
    assert content(again) == whole
    assert list(again.epochs.entries) == epochs
    assert inspect(after).faults == (), "each index is what its segment holds"
    for segment in again.segments:
        walked = Segment(segment.base_offset, segment.file, segment.base_offset)
        assert not walk(walked).fault
        assert walked.summary() == segment.summary()
