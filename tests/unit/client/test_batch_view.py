"""Test slices of a batch by offset and by time."""

from __future__ import annotations

import numpy as np
import pytest

from liftpy.client.batch_view import BatchSlice, one_by_one
from liftpy.config import Codec
from liftpy.core.wire.batch import RecordBatch, build_batch, build_filler, parse_batch
from tests.each import each

BASE, COUNT = 100, 5
TIME_NS = 1_000


def batch() -> RecordBatch:
    values: list[bytes | None] = [b"v%d" % number for number in range(COUNT)]
    keys: list[bytes | None] = [b"k%d" % number if number else None for number in range(COUNT)]
    return parse_batch(build_batch(values, base_offset=BASE, leader_epoch=3, timestamp_ns=TIME_NS, keys=keys, codec=Codec.NONE))


def cut(start: int, end: int | None) -> BatchSlice | None:
    return BatchSlice.between(batch(), start, end)


@each(
    ("start", "end", "wanted"),
    [
        (0, None, range(100, 105)),
        (100, 105, range(100, 105)),
        (100, 1000, range(100, 105)),
        (101, None, range(101, 105)),
        (0, 104, range(100, 104)),
        (102, 103, range(102, 103)),
        (104, None, range(104, 105)),
        (104, 105, range(104, 105)),
    ],
)
def test_batch_slice_between_two_offsets_contains_only_records_of_this_range(
    start: int, end: int | None, wanted: range
) -> None:
    found = cut(start, end)
    assert found is not None
    assert found.offsets().tolist() == list(wanted)
    assert (found.record_count, found.first_offset, found.last_offset) == (len(wanted), wanted[0], wanted[-1])
    assert found.values() == [b"v%d" % (offset - BASE) for offset in wanted]
    assert found.keys() == [b"k%d" % (offset - BASE) if offset > BASE else None for offset in wanted]
    assert [(record.offset, record.value) for record in found.records()] == [(o, b"v%d" % (o - BASE)) for o in wanted]
    assert found.whole is (len(wanted) == COUNT)
    assert found.leader_epoch == 3


@pytest.mark.parametrize(("start", "end"), [(105, None), (0, 100), (0, 5), (103, 103), (200, 300), (104, 103)])
def test_batch_slice_between_offsets_without_records_is_none(start: int, end: int | None) -> None:
    assert cut(start, end) is None


def test_batch_slice_of_a_control_batch_has_no_records() -> None:
    filler = parse_batch(build_filler(5, 9, 1, 1))
    assert BatchSlice.between(filler, 0, None) is None


class _Stamped:
    """A batch whose records have individual timestamps, as in a compacted log."""

    base_offset, next_offset, record_count, header = 10, 20, 4, None

    def __init__(self, times: list[int]) -> None:
        self._times, self._offsets = np.array(times), np.array([10, 12, 15, 19])

    def timestamps_ns(self):  # type: ignore[no-untyped-def]
        return self._times

    def offsets(self):  # type: ignore[no-untyped-def]
        return self._offsets


@pytest.mark.parametrize(
    ("limit", "kept", "next_offset"),
    [
        (31, (0, 4), None),
        (30, (0, 3), 19),
        (29, (0, 3), 19),
        (21, (0, 2), 15),  # the first that is late ends it, though a later one is early
        (11, (0, 1), 12),
        (10, None, 10),
        (0, None, 10),
    ],
)
def test_batch_slice_before_a_timestamp_ends_at_the_first_record_with_a_later_timestamp(
    limit: int, kept: tuple[int, int] | None, next_offset: int | None
) -> None:
    whole = BatchSlice(_Stamped([10, 20, 25, 30]), 0, 4)  # type: ignore[arg-type]
    found, following = whole.before(limit)
    assert (None if found is None else (found.first_index, found.end_index)) == kept
    assert following == next_offset


def test_batch_slice_before_a_timestamp_ignores_records_outside_the_slice() -> None:
    part = BatchSlice(_Stamped([10, 30, 5, 40]), 2, 4)  # type: ignore[arg-type]
    found, following = part.before(40)
    assert found == BatchSlice(part.batch, 2, 3)
    assert following == 19
    assert part.before(41) == (part, None)
    assert part.before(5) == (None, 15)


def test_batch_slice_list_frees_each_slice_when_it_is_yielded() -> None:
    pieces = [piece for start in (100, 101, 102) if (piece := cut(start, None))]
    wanted = list(pieces)
    found = one_by_one(pieces)
    for number, piece in enumerate(wanted):
        assert next(found) is piece
        assert len(pieces) == len(wanted) - number - 1
    assert next(found, None) is None
