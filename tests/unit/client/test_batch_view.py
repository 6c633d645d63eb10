"""Test slices of a batch by time, and the memory of a list of slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from liftpy.client.batch_view import BatchSlice, one_by_one
from liftpy.config import Codec
from liftpy.core.wire.batch import RecordBatch, parse_batch
from tests.batches import build_batch

BASE, COUNT = 100, 5
TIME_NS = 1_000


def batch() -> RecordBatch:
    values: list[bytes | None] = [b"v%d" % number for number in range(COUNT)]
    keys: list[bytes | None] = [b"k%d" % number if number else None for number in range(COUNT)]
    return parse_batch(build_batch(values, base_offset=BASE, leader_epoch=3, timestamp_ns=TIME_NS, keys=keys, codec=Codec.NONE))


def cut(start: int, end: int | None) -> BatchSlice | None:
    return BatchSlice.between(batch(), start, end)


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


COLUMNS = {
    "keys": [b"k0", None, b"", b"k3", b"k4"],
    "subjects": ["s.a", "", "s.b", "s.a", "s.c"],
    "headers": [(("h", b"0"),), (), (("h", b"2"), ("h", b"")), (), (("i", b"4"),)],
}


@pytest.mark.parametrize("given", [(), ("keys",), ("subjects",), ("headers",), tuple(COLUMNS)])
@pytest.mark.parametrize(("start", "end"), [(0, COUNT), (1, 3), (4, 5)])
def test_batch_slice_columns_have_the_fields_of_its_records(given: tuple[str, ...], start: int, end: int) -> None:
    columns: dict[str, Any] = {name: COLUMNS[name] for name in given}
    values: list[bytes | None] = [b"v0", None, b"", b"v3", b"v4"]
    whole = parse_batch(build_batch(values, base_offset=BASE, leader_epoch=3, timestamp_ns=TIME_NS, **columns))
    piece = BatchSlice.between(whole, BASE + start, BASE + end)
    assert piece is not None
    expected = {
        "keys": [None] * COUNT, "subjects": [""] * COUNT, "headers": [()] * COUNT, "values": values,
        "offsets": list(range(BASE, BASE + COUNT)), "timestamps_ns": [TIME_NS] * COUNT,
    } | columns  # fmt: skip
    records = list(piece.records())
    for name, entries in expected.items():
        field = {"headers": "headers", "timestamps_ns": "timestamp_ns"}.get(name, name.removesuffix("s"))
        assert list(getattr(piece, name)()) == [getattr(record, field) for record in records] == entries[start:end]
    assert (piece.record_count, piece.first_offset, piece.last_offset) == (end - start, BASE + start, BASE + end - 1)


def test_batch_slice_list_frees_each_slice_when_it_is_yielded() -> None:
    pieces = [piece for start in (100, 101, 102) if (piece := cut(start, None))]
    wanted = list(pieces)
    found = one_by_one(pieces)
    for number, piece in enumerate(wanted):
        assert next(found) is piece
        assert len(pieces) == len(wanted) - number - 1
    assert next(found, None) is None
