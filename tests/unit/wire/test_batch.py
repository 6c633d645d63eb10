"""Test record batches: codecs, records, headers and decompression [L7]."""

from __future__ import annotations

import copy
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import crc32c
import lz4.block
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from liftpy.config import Codec
from liftpy.core.publish.dedup_window import ids_of
from liftpy.core.publish.log_state import headers_of
from liftpy.core.wire.batch import (
    FEW,
    HEADER_SIZE_BYTES,
    MAX_BATCH_BYTES,
    Record,
    RecordBatch,
    build_filler,
    few_headers,
    parse_batch,
    split_batches,
)
from liftpy.core.wire.batch_columns import Columns
from liftpy.errors import CorruptionError, StorageError, UnknownFormatError
from tests.batches import build_batch
from tests.each import each
from tests.unit.wire.batch_fuzz import fuzz

_bytes = st.binary(max_size=20)
_maybe = st.none() | _bytes
_name = st.text("abcXYZ-é", min_size=1, max_size=8)


@st.composite
def _columns(draw: st.DrawFn) -> dict:
    count = draw(st.integers(1, 12))

    def rows(entry: st.SearchStrategy) -> st.SearchStrategy:
        return st.none() | st.lists(entry, min_size=count, max_size=count)

    return {
        "values": draw(st.lists(_maybe, min_size=count, max_size=count)),
        "keys": draw(rows(_maybe)),
        "headers": draw(rows(st.none() | st.lists(st.tuples(_name, _bytes), max_size=3))),
        "subjects": draw(rows(_name)),
        "replies": draw(rows(st.none() | _name)),
        "timestamps_ns": draw(rows(st.integers(0, 2**62))),
        "codec": draw(st.sampled_from(Codec)),
        "base_offset": draw(st.integers(0, 2**62)),
        "leader_epoch": draw(st.integers(0, 2**63 - 1)),
        "timestamp_ns": draw(st.integers(0, 2**62)),
    }


@given(_columns())
def test_batch_encoded_with_any_codec_decodes_to_the_same_columns(given_: dict) -> None:
    columns = dict(given_)
    values = columns.pop("values")
    batch = parse_batch(build_batch(values, **columns))
    count = len(values)
    records = list(batch.records())
    assert [r.value for r in records] == values
    assert [r.key for r in records] == (columns["keys"] or [None] * count)
    assert [r.headers for r in records] == [tuple(h or ()) for h in columns["headers"] or [None] * count]
    assert [r.subject for r in records] == (columns["subjects"] or [""] * count)
    assert [r.reply for r in records] == (columns["replies"] or [None] * count)
    assert [r.timestamp_ns for r in records] == (columns["timestamps_ns"] or [columns["timestamp_ns"]] * count)
    assert [r.offset for r in records] == list(range(columns["base_offset"], columns["base_offset"] + count))
    assert (batch.leader_epoch, batch.next_offset) == (columns["leader_epoch"], columns["base_offset"] + count)


@given(_columns(), st.integers(0, 1 << 30))
def test_batch_with_a_flipped_bit_is_always_detected(given_: dict, bit: int) -> None:
    columns = dict(given_)
    damaged = bytearray(build_batch(columns.pop("values"), **columns))
    bit %= len(damaged) * 8
    damaged[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(StorageError):
        parse_batch(bytes(damaged))


def test_batch_with_damaged_bytes_and_a_valid_crc_is_rejected_or_read_within_its_bounds() -> None:
    assert 0 < fuzz(4000, seed=7) < 4000  # more of it: python -m tests.unit.wire.batch_fuzz


def test_batch_of_an_unknown_version_is_rejected_with_the_version() -> None:
    batch = bytearray(build_batch([b"x"]))
    batch[6] = 2
    with pytest.raises(CorruptionError, match="Damaged batch"):  # a flipped bit, as the CRC shows
        parse_batch(bytes(batch))
    batch[:4] = crc32c.crc32c(bytes(batch[4:])).to_bytes(4, "little")
    with pytest.raises(UnknownFormatError, match="version 2"):
        parse_batch(bytes(batch))


def test_batch_with_offset_deltas_has_gaps_between_record_offsets() -> None:
    batch = parse_batch(build_batch([b"a", b"b"], base_offset=10, offset_deltas=[1, 5]))
    assert batch.offsets().tolist() == [11, 15]
    assert (batch.last_offset, batch.next_offset) == (15, 16)


def test_filler_batch_covers_offsets_without_records() -> None:
    first, second = build_filler(5, 9, 3, 77), build_batch([b"x"], base_offset=9, leader_epoch=3)
    filler = split_batches(first + second)[0]
    assert (filler.base_offset, filler.next_offset, filler.leader_epoch, filler.timestamp_ns) == (5, 9, 3, 77)
    assert (list(filler.records()), filler.offsets().tolist(), filler.values(), filler.keys()) == ([], [], [], [])


def test_batch_values_are_views_without_a_copy() -> None:
    buffer = build_batch([b"abc", b"def"])
    data = np.frombuffer(parse_batch(buffer).columns.values.data, dtype=np.uint8)
    assert np.shares_memory(data, np.frombuffer(buffer, dtype=np.uint8))


@pytest.mark.parametrize("values", [[], ["ab"]], ids=["no records", "text instead of bytes"])
def test_build_batch_without_values_or_with_invalid_values_raises(values: list) -> None:
    with pytest.raises((ValueError, TypeError)):
        build_batch(values)


def test_batch_that_is_a_decompression_bomb_is_rejected_without_decompression() -> None:
    batch = bytearray(build_batch([b"x" * 1000], codec=Codec.ZSTD))
    batch[56:60] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(CorruptionError, match="has an invalid header"):
        parse_batch(bytes(batch), verify=False)
    assert len(batch) > HEADER_SIZE_BYTES


def made(**columns: Any) -> Record:
    return next(parse_batch(build_batch([b"value"], base_offset=7, leader_epoch=3, timestamp_ns=5, **columns)).records())


def test_batch_record_equals_a_record_with_the_same_fields() -> None:
    record = made(keys=[b"k"], headers=[[("h", b"1"), ("h", b"2")]], subjects=["s.1"], replies=["r"])
    plain = Record(7, 5, b"k", b"value", (("h", b"1"), ("h", b"2")), "s.1", "r", 3)
    assert isinstance(record, Record)
    assert (record, hash(record), repr(record), record._asdict()) == (plain, hash(plain), repr(plain), plain._asdict())
    assert plain == record
    assert (record.header("h"), record.header_values("h"), record._fields) == (b"1", [b"1", b"2"], Record._fields)
    assert record._replace(offset=8) == plain._replace(offset=8)
    match record:
        case Record(offset=7, key=key):
            assert key == b"k"
        case _:
            pytest.fail("it is no Record")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_batch_record_can_be_pickled_and_copied(protocol: int) -> None:
    record = made(keys=[b"k"])
    for other in (pickle.loads(pickle.dumps(record, protocol)), copy.copy(record), copy.deepcopy(record)):
        assert (type(other), other) == (Record, record)


def test_batch_record_is_immutable_and_has_no_instance_dictionary() -> None:
    record: Any = made()
    with pytest.raises(AttributeError):
        record.offset = 8
    with pytest.raises(AttributeError):
        record.anything = 8


@given(st.integers(0, 40), st.integers(1, 70), st.data())
def test_batch_values_of_equal_or_different_sizes_encoded_and_decoded_are_equal(
    size_bytes: int, count: int, data: st.DataObject
) -> None:
    values = data.draw(st.lists(st.binary(min_size=size_bytes, max_size=size_bytes), min_size=count, max_size=count))
    odd = data.draw(st.integers(-1, count - 1))
    if odd >= 0:
        values[odd] = data.draw(st.none() | st.binary(max_size=size_bytes + 1))
    if odd > 0:  # the sizes' sum is what it would be
        values[odd - 1] = bytes(max(2 * size_bytes - len(values[odd] or b""), 0))
    batch = parse_batch(build_batch(values, keys=values))
    assert (batch.values(), batch.keys()) == (values, values)
    assert {type(value) for value in batch.values()} <= {bytes, type(None)}
    assert [record.value for record in batch.records()] == values


Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]
PAIRS = st.lists(
    st.tuples(st.sampled_from(["Nats-Msg-Id", "h", "", "Nats-Expected-Last-Subject-Sequence"]), st.binary(max_size=9)),
    max_size=3,
)
ROWS = st.lists(
    st.tuples(st.one_of(st.none(), st.binary(max_size=20)), st.one_of(st.none(), st.binary(max_size=3)), PAIRS),
    min_size=1,
    max_size=FEW,
)


@given(ROWS, st.booleans(), st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_few_headers_returns_the_same_headers_as_the_columns(rows: list[Row], keys: bool, codec: Codec) -> None:
    values, of_keys, pairs = zip(*rows, strict=True)
    headers = [tuple(of_record) for of_record in pairs]
    own_keys = of_keys if keys else None
    built = build_batch(values, base_offset=70, leader_epoch=1, keys=own_keys, headers=headers, codec=codec)
    (batch,) = split_batches(built)
    present = Columns(batch.header.column_bits)
    if Columns.HEADERS not in present:
        return
    wanted = [(record, name.encode(), value) for record, of_record in enumerate(pairs) for name, value in of_record]
    assert few_headers(batch.body(), len(rows), present) == wanted
    ids, asks = headers_of(batch)
    assert ids == {70 + record: message_id for record, message_id in ids_of(batch.columns.headers).items()}
    assert asks == any(name == b"Nats-Expected-Last-Subject-Sequence" for _, name, _ in wanted)


def body_of(*pairs: tuple[str, bytes]) -> tuple[bytearray, Columns]:
    (batch,) = split_batches(build_batch([b"v"], base_offset=0, leader_epoch=1, headers=[pairs]))
    return bytearray(batch.body()), Columns(batch.header.column_bits)


def test_few_headers_of_a_truncated_or_inconsistent_body_raises_corruption() -> None:
    whole, present = body_of(("name", b"value"), ("other", b"x"))
    for end in range(len(whole) - 8):
        with pytest.raises(CorruptionError):
            few_headers(memoryview(whole)[:end], 1, present)
    for at in range(0, len(whole) - 3, 4):
        for number in (0, 3, 0xFFFFFFFF):
            broken = bytearray(whole)
            struct.pack_into("<I", broken, at, number)
            try:
                found = few_headers(memoryview(broken), 1, present)
            except CorruptionError:
                continue
            assert sum(len(name) + len(value) for _, name, value in found) <= len(whole)


@pytest.mark.parametrize("column", [0, 1])
def test_few_headers_with_decreasing_end_positions_raises_corruption(column: int) -> None:
    (batch,) = split_batches(build_batch([b"", b""], base_offset=0, leader_epoch=1, headers=[(("a", b"1"),), (("b", b"2"),)]))
    body, at = bytearray(batch.body()), (8, 16)[column]
    ends = struct.unpack_from("<2I", body, at)
    assert ends == (1, 2)
    struct.pack_into("<2I", body, at, 2, 1) if column else struct.pack_into("<2I", body, at, 3, 2)
    with pytest.raises(CorruptionError):
        few_headers(memoryview(body), 2, Columns(batch.header.column_bits))


def test_headers_of_a_batch_with_many_records_are_found() -> None:
    headers = [(("Nats-Msg-Id", b"%d" % number),) for number in range(FEW + 1)]
    (batch,) = split_batches(build_batch([b""] * (FEW + 1), base_offset=0, leader_epoch=1, headers=headers))
    assert headers_of(batch) == ({number: b"%d" % number for number in range(FEW + 1)}, False)


MIB = 1 << 20


def forged(body: bytes, codec: Codec, body_size_bytes: int) -> RecordBatch:
    """A batch with a right CRC whose header says ``body_size_bytes`` of ``body``."""
    batch = bytearray(build_batch([b"x"])[:64]) + body
    batch[7] = codec.value
    struct.pack_into("<I", batch, 8, len(batch))
    struct.pack_into("<I", batch, 56, body_size_bytes)
    struct.pack_into("<I", batch, 0, crc32c.crc32c(bytes(batch[4:])))
    return parse_batch(bytes(batch))


def without_size(data: bytes) -> bytes:
    """A zstd frame that does not say how much is in it."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return compressor.compress(data) + compressor.flush()


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(batch: RecordBatch) -> None:
    with pytest.raises(CorruptionError, match="offset 0"):
        batch.body()


BOMB_BYTES = 256 * MIB


def zstd(size_bytes: int) -> bytes:
    return zstandard.ZstdCompressor().compress(bytes(size_bytes))


def lz4_block(size_bytes: int) -> bytes:
    return lz4.block.compress(bytes(size_bytes), store_size=False)


@each(
    ("codec", "make", "says"),
    [
        pytest.param(Codec.ZSTD, lambda: zstd(BOMB_BYTES), 1000, id="zstd bomb, small header"),
        pytest.param(Codec.ZSTD, lambda: zstd(BOMB_BYTES), MAX_BATCH_BYTES, id="zstd bomb, largest header"),
        pytest.param(Codec.ZSTD, lambda: without_size(bytes(BOMB_BYTES)), 1000, id="zstd bomb without its size"),
        pytest.param(Codec.ZSTD, lambda: without_size(bytes(999)), 1000, id="zstd without its size, one byte short"),
        pytest.param(Codec.ZSTD, lambda: zstd(10), 1000, id="zstd, too short"),
        pytest.param(Codec.LZ4, lambda: lz4_block(64 * MIB), 1000, id="lz4 bomb"),
        pytest.param(Codec.LZ4, lambda: lz4_block(1000), MAX_BATCH_BYTES, id="lz4, too short"),
        pytest.param(Codec.LZ4, lambda: b"\xff" * 100, 1000, id="lz4 garbage"),
        pytest.param(Codec.ZSTD, lambda: b"\xff" * 100, 1000, id="zstd garbage"),
    ],
)
def test_decompression_allocates_no_more_than_the_header_declares(codec: Codec, make: Callable[[], bytes], says: int) -> None:
    batch = forged(make(), codec, says)
    assert peak_bytes(lambda: refused(batch)) < 2 * MIB


@pytest.mark.parametrize("body", [zstd(1000), without_size(bytes(1000))], ids=["with its size", "without its size"])
def test_zstd_frame_with_or_without_its_size_is_decompressed(body: bytes) -> None:
    assert forged(body, Codec.ZSTD, 1000).body() == bytes(1000)
