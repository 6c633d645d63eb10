"""Test record batches: a decoded batch equals the encoded one, and a damaged batch raises only storage errors."""

from __future__ import annotations

import crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from liftpy.config import Codec
from liftpy.core.wire.batch import HEADER_SIZE_BYTES, build_batch, build_filler, parse_batch, split_batches
from liftpy.errors import CorruptionError, StorageError, UnknownFormatError
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
