"""Test filtered and backward reads of a log against a naive model."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from liftpy.config import Codec, StreamConfig
from liftpy.core.log import range_reads
from liftpy.core.log.log import Log
from liftpy.core.log.range_reads import read_narrow, read_selected
from liftpy.core.log.storage import MemoryStorage
from liftpy.core.wire.batch import Record, split_batches
from liftpy.core.wire.batch_columns import Columns
from liftpy.core.wire.chunking import Assembly
from liftpy.core.wire.filters import VALUES, Filter
from liftpy.errors import CorruptionError
from tests.batches import build_batch

CONFIG = StreamConfig(segment_bytes=4096)
batches = st.lists(
    st.tuples(
        st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", None]), st.integers(0, 300)), min_size=1, max_size=8),
        st.sampled_from(["o.eu", "o.us", "p", ""]),
        st.sampled_from([Codec.NONE, Codec.LZ4]),
    ),
    min_size=1,
    max_size=25,
)
FILTERS = [
    Filter(),
    Filter(subjects=("o.*",)),
    Filter(keys=(b"a",)),
    Filter(subjects=("p",), keys=(b"b", b"c")),
    Filter(keys=(b"x",)),
]


def filled(rows: list[Any]) -> tuple[Log, list[Record]]:
    log = Log.open(MemoryStorage(), CONFIG)[0]
    records: list[Record] = []
    for keyed, subject, codec in rows:
        keys = [key for key, _ in keyed]
        data = build_batch(
            [b"%d" % size * size for _, size in keyed],
            keys=keys,
            subjects=[subject] * len(keyed),
            base_offset=log.log_end_offset,
            leader_epoch=1,
            codec=codec,
        )
        log.append(data)
        records += split_batches(data)[0].records()
    log.flush()
    log.raise_high_watermark(log.newest_offset)
    return log, records


def read_all(log: Log, wanted: Filter, at: int, max_bytes: int, room: int, end: int, *, backwards: bool) -> list[Record]:
    """As a reader does: answer after answer, pieces put together."""
    found: list[Record] = []
    assembly = Assembly()
    for _ in range(10_000):
        if at == (log.log_start_offset if backwards else end):
            return found
        portion = read_selected(log, wanted, at, max_bytes, room, end_offset=end, backwards=backwards, held=assembly.held)
        assert portion.size_bytes == sum(map(len, portion.chunks)) <= room
        data = b"".join(portion.chunks)
        if portion.piece is not None:
            whole = assembly.add_piece(portion.piece)
            if whole is None:
                continue
            data, here = bytes(whole), split_batches(whole)[0]
            moved = max(here.base_offset, log.log_start_offset) if backwards else here.next_offset
        else:
            moved = portion.next_offset
        assert moved < at if backwards else moved > at
        records = [record for batch in split_batches(data) for record in batch.records()]
        if backwards:
            found += reversed([record for record in records if log.log_start_offset <= record.offset < at])
        else:
            found += [record for record in records if at <= record.offset]
        at = moved
    raise AssertionError("it does not end")


@settings(max_examples=60)
@given(
    batches,
    st.sampled_from(FILTERS),
    st.booleans(),
    st.sampled_from([1, 700, 1 << 20]),
    st.sampled_from([100, 900, 1 << 20]),
    st.sampled_from([1, 900, 1 << 20]),
    st.integers(0, 200),
    st.integers(0, 60),
)
def test_filtered_read_returns_each_matching_record_once_in_order(
    rows: list[Any], wanted: Filter, backwards: bool, max_bytes: int, room: int, look: int, place: int, dropped: int
) -> None:
    log, records = filled(rows)
    log.drop_prefix(min(dropped, log.log_end_offset))
    start = min(max(place, log.log_start_offset), log.log_end_offset)
    expected = [
        record
        for record in records
        if wanted.mask(split_batches(build_batch([b""], keys=[record.key], subjects=[record.subject]))[0])[0]
        and (log.log_start_offset <= record.offset < start if backwards else record.offset >= start)
    ]
    if backwards:
        expected.reverse()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(range_reads, "SCAN_BYTES", look)
        assert read_all(log, wanted, start, max_bytes, room, log.log_end_offset, backwards=backwards) == expected


def test_filtered_read_scans_a_bounded_part_of_the_log_per_response(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = filled([([(b"a", 300)] * 8, "p", Codec.NONE)] * 25)
    looked: list[int] = []
    mask = Filter.mask
    monkeypatch.setattr(Filter, "mask", lambda self, batch: looked.append(batch.header.size_bytes) or mask(self, batch))
    monkeypatch.setattr(range_reads, "SCAN_BYTES", 20_000)
    for backwards, start in ((False, 0), (True, 200)):
        looked.clear()
        portion = read_selected(log, Filter(keys=(b"x",)), start, 1 << 20, 1 << 20, end_offset=200, backwards=backwards)
        assert not portion.chunks
        assert 0 < abs(portion.next_offset - start) < 100
        assert (0 if backwards else 10_000) < sum(looked) <= 20_000 + 8192  # backwards: of one segment


def test_filtered_read_decompresses_a_bounded_part_of_the_log_per_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 MiB of LZ4 data can expand to 255 MiB."""
    log, _ = filled([([(b"a", 300)] * 8, "p", Codec.LZ4)] * 25)
    monkeypatch.setattr(range_reads, "DECOMPRESSED_BYTES", 20_000)  # a body has about 7,300 bytes
    for backwards, start in ((False, 0), (True, 200)):
        portion = read_selected(log, Filter(keys=(b"x",)), start, 1 << 20, 1 << 20, end_offset=200, backwards=backwards)
        assert (portion.chunks, abs(portion.next_offset - start)) == ((), 3 * 8)
    assert read_narrow(log, VALUES, 0, 1 << 20, 1 << 20, end_offset=200).next_offset == 3 * 8


def test_filtered_read_with_64_wildcard_subjects_takes_less_than_half_a_second_per_response() -> None:
    """[A21]"""
    log = Log.open(MemoryStorage(), StreamConfig())[0]
    for base in range(0, 40_000, 4000):
        subjects = [f"s.{offset}.a.b" for offset in range(base, base + 4000)]
        log.append(build_batch([b""] * 4000, subjects=subjects, base_offset=base, leader_epoch=1, timestamp_ns=1))
    log.raise_high_watermark(39_999)
    wanted = Filter(tuple(f"*.*.*.x{number}" for number in range(64)))
    for backwards, start in ((False, 0), (True, 40_000)):
        began = time.process_time()
        portion = read_selected(log, wanted, start, 1 << 20, 1 << 20, end_offset=40_000, backwards=backwards)
        assert time.process_time() - began < 0.5
        assert 10_000 <= abs(portion.next_offset - start) <= 14_000, "the next read goes on there"


def test_filtered_read_returns_no_uncommitted_records() -> None:
    log, _ = filled([([(b"a", 3)], "p", Codec.NONE)] * 10)
    for wanted in (Filter(), Filter(keys=(b"a",))):
        forwards = read_selected(log, wanted, 2, 1 << 20, 1 << 20, end_offset=6)
        assert [b.base_offset for b in split_batches(b"".join(forwards.chunks))] == [2, 3, 4, 5]
        below = read_selected(log, wanted, 6, 1 << 20, 1 << 20, end_offset=6, backwards=True)
        assert [b.base_offset for b in split_batches(b"".join(below.chunks))] == [0, 1, 2, 3, 4, 5]
        assert (forwards.next_offset, below.next_offset) == (6, 0)


def test_filtered_read_of_damaged_data_reports_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = filled([([(b"a", 3), (b"b", 3)], "p", Codec.NONE)] * 4)
    told: list[CorruptionError] = []
    monkeypatch.setattr(log, "handle_damage", told.append)
    good = log.read
    monkeypatch.setattr(log, "read", lambda *given, **more: _flipped(good(*given, **more)))
    for backwards in (False, True):
        with pytest.raises(CorruptionError):
            read_selected(log, Filter(keys=(b"a",)), 8 * backwards, 1 << 20, 1 << 20, end_offset=8, backwards=backwards)
    assert len(told) == 2


def _flipped(read: Any) -> Any:
    data = bytearray(read.chunks[0])
    data[-3] ^= 1
    return type(read)((memoryview(data),), read.size_bytes, read.next_offset)


def test_filtered_read_of_a_batch_with_unreadable_columns_returns_the_whole_batch() -> None:
    log, _ = filled([([(b"a", 3)], "p", Codec.NONE)])
    data = bytearray(build_batch([b"v" * 100], keys=[b"k"], base_offset=1, leader_epoch=1, codec=Codec.LZ4))
    data[70:75] = b"\xff" * 5
    import crc32c

    data[0:4] = crc32c.crc32c(bytes(data[4:])).to_bytes(4, "little")
    log.append(bytes(data))
    portion = read_selected(log, Filter(keys=(b"a",)), 1, 1 << 20, 1 << 20, end_offset=2)
    assert portion.chunks == (bytes(data),)


def test_filtered_read_response_never_exceeds_its_size_limit() -> None:
    log, _ = filled([([(b"a", 1)], "p", Codec.NONE)] * 30)
    one = len(read_selected(log, Filter(), 0, 1, 1 << 20, end_offset=1).chunks[0])
    for backwards, start in ((False, 0), (True, 30)):
        for most in (one, 3 * one - 1, 3 * one, 3 * one + 1):
            for max_bytes, room in ((most, 1 << 20), (1 << 20, most)):
                portion = read_selected(log, Filter(), start, max_bytes, room, end_offset=30, backwards=backwards)
                assert (len(portion.chunks), portion.size_bytes) == (most // one, most // one * one)


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(0, 255), st.integers(100, 3000), st.integers(300, 4000))
def test_column_read_returns_all_columns_except_the_omitted_columns(
    rows: list[Any], left_out: int, max_bytes: int, room: int
) -> None:
    log, records = filled(rows)
    at, end, found, assembly = 0, log.log_end_offset, [], Assembly()
    while at < end:
        portion = read_narrow(log, left_out, at, max_bytes, room, end_offset=end, held=assembly.held)
        data = b"".join(portion.chunks)
        if portion.piece is not None:
            whole = assembly.add_piece(portion.piece)
            if whole is None:
                continue
            data = bytes(whole)
        else:
            assert portion.scanned_bytes > 0
        for batch in split_batches(data):
            found += list(batch.records())
            at = batch.next_offset
    wanted = [
        record._replace(
            value=None if left_out & VALUES else record.value,
            key=None if left_out & Columns.KEYS.value else record.key,
            subject="" if left_out & Columns.SUBJECTS.value else record.subject,
        )
        for record in records
    ]
    assert found == wanted


def test_column_read_without_values_scans_up_to_a_megabyte_per_response() -> None:
    log = Log.open(MemoryStorage(), StreamConfig())[0]
    for base in range(0, 4000, 100):
        log.append(build_batch([b"x" * 1000] * 100, base_offset=base, leader_epoch=1))
    log.flush()
    portion = read_narrow(log, VALUES, 150, 1 << 20, 1 << 20, end_offset=4000)
    assert 800_000 < portion.scanned_bytes <= 1 << 20
    assert portion.size_bytes < 10_000
    assert read_narrow(log, VALUES, 150, 1 << 20, 1 << 20, end_offset=450).next_offset == 400, "not the batch that ends at 500"


@pytest.mark.parametrize("left_out", [VALUES, Columns.REPLIES.value])
def test_column_read_of_a_batch_of_the_maximum_size_returns_it(left_out: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Null values need a bitmap, and a batch from an older version has no room for offsets."""
    log = Log.open(MemoryStorage(), StreamConfig())[0]
    stored = build_batch([b""] * 100, keys=[b"k"] * 100, leader_epoch=1)
    log.append(stored)
    monkeypatch.setattr("liftpy.core.wire.batch.MAX_BATCH_BYTES", len(stored))
    assert read_narrow(log, left_out, 0, 1 << 20, 1 << 20, end_offset=100).chunks == (stored,)
