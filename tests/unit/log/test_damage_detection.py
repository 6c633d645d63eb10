"""Test that every read, recheck, scan and compaction that meets damaged bytes starts the repair."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import StreamConfig
from liftpy.core.log.log import EVERY_NS, READERS, Log, RecheckLimiter, RecheckResult
from liftpy.core.log.scrub import Scan, freshly_sealed, is_confirmed_damage, scan_of
from liftpy.core.log.segment import index_name, log_name
from liftpy.core.log.storage import LogFile, MemoryStorage
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, split_batches
from liftpy.errors import CorruptionError
from tests.batches import build_batch
from tests.long import examples
from tests.scrubbing import scrub_all
from tests.unit.log import small_logs

CONFIG = StreamConfig(segment_bytes=1 << 20)
SEALED_BATCHES = 40
BATCH = 30


def filled(config: StreamConfig = CONFIG) -> tuple[Log, MemoryStorage, list[CorruptionError]]:
    """A sealed segment of many blocks, and an active one; what ``on_damage`` was told."""
    storage, told = MemoryStorage(), []
    log, _ = Log.open(storage, config)
    log.on_damage = told.append
    for number in range(SEALED_BATCHES + 5):
        if number == SEALED_BATCHES:
            log.roll()
        keys = [b"%d" % (i % 7) for i in range(BATCH)]
        log.append(
            build_batch([b"x" * 40] * BATCH, keys=keys, base_offset=log.log_end_offset, leader_epoch=1, timestamp_ns=number)
        )
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log, storage, told


def flip(storage: MemoryStorage, base: int, position: int, bit: int = 0) -> None:
    storage.files[log_name(base)].data[position] ^= 1 << bit


def read_all(log: Log) -> None:
    """As a follower does, which checks what it is given."""
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        result = log.read(offset, 5000, end_offset=log.log_end_offset)
        for chunk in result.chunks:
            for batch in split_batches(chunk):
                if batch.base_offset != offset:
                    raise CorruptionError("a gap")
                offset = batch.next_offset
        assert result.chunks, "nothing there is no answer"


def finish(scan: Scan, file: LogFile, piece: int) -> None:
    while not scan.done:
        scan.step(file, piece)


@settings(max_examples=examples(300), deadline=None)
@given(sealed=st.booleans(), share=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), in_header=st.booleans())
def test_log_read_of_any_flipped_bit_raises_corruption(sealed: bool, share: float, bit: int, in_header: bool) -> None:
    log, storage, told = filled()
    segment = log.segments[0 if sealed else -1]
    assert segment.checked, "written by this process"
    position = int(segment.size_bytes * share)
    if in_header:
        starts = [at for at, _ in segment.batches(0, segment.size_bytes)]
        position = max(at for at in starts if at <= position) + position % HEADER_SIZE_BYTES
    flip(storage, segment.base_offset, position, bit)
    with pytest.raises(CorruptionError):
        read_all(log)
    offsets = range(segment.base_offset, segment.next_offset, BATCH)
    outcomes = {log.complaint(offset, str(offset), 0) for offset in offsets}
    assert RecheckResult.DAMAGED in outcomes
    assert told
    assert storage.load(index_name(segment.base_offset)) is None, "so that the next recovery walks it"


@settings(max_examples=examples(100), deadline=None)
@given(
    sealed=st.booleans(),
    share=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    piece=st.sampled_from([1, 777, 5000, 1 << 20]),
)
def test_scrub_of_any_flipped_bit_reports_damage_with_its_position(sealed: bool, share: float, bit: int, piece: int) -> None:
    log, storage, told = filled()
    assert scrub_all(log, log.segments, piece)
    segment = log.segments[0 if sealed else -1]
    position = int(segment.size_bytes * share)
    starts = {at: header.base_offset for at, header in segment.batches(0, segment.size_bytes)}
    flip(storage, segment.base_offset, position, bit)
    scan = scan_of(log, segment)
    assert scan is not None
    with pytest.raises(CorruptionError):
        finish(scan, segment.file, piece)
    assert scan.next_offset == starts[max(at for at in starts if at <= position)]
    assert is_confirmed_damage(log, segment, scan)
    assert len(told) == 1


def test_scrub_scan_ignores_unflushed_data() -> None:
    log, _ = Log.open(MemoryStorage(), CONFIG)
    assert scan_of(log, log.segments[0]) is None
    log.append(build_batch([b"x"], leader_epoch=1))
    assert scan_of(log, log.segments[0]) is None
    log.flush()
    assert scan_of(log, log.segments[0]) is not None


def test_scrub_scan_of_a_segment_truncated_during_the_scan_reports_no_damage() -> None:
    log, _, told = filled()
    segment = log.segments[-1]
    scan = scan_of(log, segment)
    assert scan is not None
    log.truncate_to(SEALED_BATCHES * BATCH + BATCH)
    with pytest.raises(CorruptionError):
        finish(scan, segment.file, 1 << 20)
    assert not is_confirmed_damage(log, segment, scan)
    assert not told


def test_freshly_sealed_returns_only_a_flushed_segment_that_this_process_sealed() -> None:
    log, storage, _ = filled()
    assert freshly_sealed(log) is log.segments[0]
    log, _ = Log.open(storage.crash(power=False), CONFIG)
    assert freshly_sealed(log) is None
    log.append(build_batch([b"x"], base_offset=log.log_end_offset, leader_epoch=1))
    log.roll()
    assert freshly_sealed(log) is None, "not flushed yet"
    log.flush()
    assert freshly_sealed(log) is log.segments[1]


def test_compaction_that_reads_a_damaged_block_raises_corruption_and_reports_damage() -> None:
    log, storage, told = filled(replace(CONFIG, compaction=True))
    compaction = log.begin_compaction(0)
    assert compaction is not None
    flip(storage, 0, 5000)
    with pytest.raises(CorruptionError) as caught:
        compaction.run()
    log.handle_damage(caught.value)
    assert len(told) == 1
    _, report = Log.open(storage.crash(power=False), CONFIG)
    assert len(report.damage) == 1
    assert report.must_leave_isr


def test_retention_that_reads_damage_raises_corruption_and_reports_damage() -> None:
    log, storage, told = filled()
    position = next(at for at, header in log.segments[0].batches(0, 1 << 20) if header.base_offset == 10 * BATCH)
    for at in range(position, position + 6):
        storage.files[log_name(0)].data[at] ^= 255
    log.segments[0].recent.clear()
    with pytest.raises(CorruptionError):
        log.drop_prefix(10 * BATCH + 1)
    assert told


def test_damage_reports_of_one_peer_are_rechecked_at_most_once_per_interval() -> None:
    log, _, told = filled()
    assert log.complaint(0, "b", 0) is RecheckResult.SOUND
    assert log.complaint(0, "b", EVERY_NS - 1) is RecheckResult.TOO_SOON
    assert log.complaint(0, "c", 1) is RecheckResult.SOUND, "a follower is not silenced by another"
    assert log.complaint(0, READERS, 2) is RecheckResult.SOUND
    assert log.complaint(0, "b", EVERY_NS) is RecheckResult.SOUND
    for offset in (-1, log.log_end_offset, 1 << 62):
        assert log.complaint(offset, "d", 0) is RecheckResult.NOT_HERE
    log.close()
    assert log.complaint(0, "e", 0) is RecheckResult.NOT_HERE
    assert not told
    rechecks = RecheckLimiter()
    for number in range(1000):
        rechecks.is_due(str(number), 0)
    assert len(rechecks._last_ns) <= 64


@pytest.mark.parametrize("spoil", ["damage", "remove"])
def test_log_open_rewrites_a_missing_or_damaged_index(spoil: str) -> None:
    """[S6]"""
    _, storage, _ = filled()
    before = storage.load(index_name(0))
    assert before is not None
    if spoil == "damage":
        storage.files[index_name(0)].data[20] ^= 1
    else:
        storage.remove(index_name(0))
    storage = storage.crash(power=False)
    log, report = Log.open(storage, CONFIG)
    assert report.rebuilt_indexes == 1
    assert storage.load(index_name(0)) == before
    assert log.segments[0].sealed
    _, report = Log.open(storage.crash(power=True), CONFIG)
    assert report.rebuilt_indexes == 0


def test_log_open_without_space_for_an_index_file_opens_the_log() -> None:
    _, storage, _ = filled()
    storage.remove(index_name(0))
    storage.capacity_bytes = storage.used_bytes() + 10
    log, _ = Log.open(storage, CONFIG)
    read_all(log)


def test_log_read_of_a_block_with_wrong_offsets_raises_corruption() -> None:
    """A misdirected write put correct batches at the place of others."""
    storage = MemoryStorage()
    small_logs.filled(400, roll_every=200, storage=storage, segment_bytes=1 << 28).close()
    log = small_logs.a_log(storage)
    entries = log.segments[0].entries
    data = storage.files[log_name(0)].data
    at, other = entries[1], entries[2]
    size = min(entries[2].position - at.position, entries[3].position - other.position)
    data[at.position : at.position + size] = data[other.position : other.position + size]
    with pytest.raises(CorruptionError):
        log.read(at.base_offset, 1)
